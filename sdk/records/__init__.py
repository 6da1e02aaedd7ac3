"""What is written down about a run, and what can be told from it."""
