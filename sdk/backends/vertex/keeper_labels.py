"""The labels and variables by which the keepers of schedules are known, at Vertex AI and in their own containers."""

# Labels of a keeper's job. The last two are those of a pipeline job, which is all that a schedule of Vertex AI has.
SCHEDULE, SLOT, REQUEST = "podlift-schedule", "podlift-slot", "podlift-request"
SCHEDULE_ID, DIGEST = "podlift-schedule-id", "podlift-digest"
# Values of SLOT: by the schedule, or a firing that a user asked for.
BY_CRON, BY_HAND = "cron", "manual"
# Variables that a pipeline gives to its container, by arguments NAME=VALUE: one of the values above, the instant of the slot,
# when the pipeline job was created, and its name.
CAUSE, SLOT_TIME, CREATED, JOB = (f"PODLIFT_DELIVERY_{name}" for name in ("CAUSE", "SLOT", "CREATED", "JOB"))
