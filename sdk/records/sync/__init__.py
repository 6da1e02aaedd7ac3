"""Push and pull between a run directory and a bucket."""
