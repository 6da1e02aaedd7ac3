"""Code that runs inside a task, locally or in a container. It needs the standard library only."""
