"""Checkpoints: a protocol that survives a kill at any instant, and what it keeps of a training program."""
