"""The additions of podlift to a training: checkpoints, limits, kill points."""
