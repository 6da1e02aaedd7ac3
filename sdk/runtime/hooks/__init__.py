"""What podlift adds to a training: checkpoints, limits, kill points."""
