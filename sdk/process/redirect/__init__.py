"""The way of a task's gs:// traffic to an emulator: a proxy and its certificates."""
