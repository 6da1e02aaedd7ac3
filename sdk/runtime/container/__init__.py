"""A task of a run in a container of Vertex AI: from the first line that runs there to the exit code it leaves with."""
