"""What a program imports and does, read from its source."""
