"""What runs inside a task, here or in a cloud's container: needs the standard library, and no more."""
