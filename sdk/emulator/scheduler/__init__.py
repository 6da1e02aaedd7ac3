"""Cloud Scheduler: jobs with an HTTP target, fired by the emulator's clock."""
