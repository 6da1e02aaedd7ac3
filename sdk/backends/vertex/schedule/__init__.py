"""Schedules by Cloud Scheduler, and the keeper that it starts at each slot."""
