"""The requirements of a project, from the file that states them."""
