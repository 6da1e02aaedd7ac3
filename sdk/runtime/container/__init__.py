"""A task in a container of Vertex AI: from the container's command to its exit code."""
