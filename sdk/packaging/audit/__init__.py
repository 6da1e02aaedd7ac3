"""The imports and actions of a program, read from its source."""
