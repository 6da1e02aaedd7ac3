"""A task in a container of a service: from the container's command to its exit code."""
