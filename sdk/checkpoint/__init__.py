"""Checkpoints: a protocol that survives a kill at any instant, and the state of a training program that it keeps."""
