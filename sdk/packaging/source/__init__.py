"""Programs that are not files: functions and notebooks."""
