"""A run as a custom job: its request, creation, state and logs."""
