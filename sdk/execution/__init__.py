"""How the tasks of an attempt are started and watched, and how an attempt ends; from a container's command to its exit code."""
