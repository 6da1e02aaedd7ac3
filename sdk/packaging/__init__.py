"""From an entry to a content-addressed archive of the code: where it starts, which files, which bytes."""
