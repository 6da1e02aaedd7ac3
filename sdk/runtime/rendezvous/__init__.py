"""How the tasks of an attempt agree on members and steps."""
