"""Schedules: programs that start at the slots of a cron expression."""
