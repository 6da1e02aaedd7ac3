"""The processes that wait for a run and submit its next jobs."""
