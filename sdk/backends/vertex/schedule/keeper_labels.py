"""The labels that identify keepers of schedules, and the slot in a label. Pure; a keeper's container reads it, too."""

from __future__ import annotations

from datetime import datetime, timezone

# Labels of a keeper's job.
SCHEDULE, SLOT, REQUEST = "podlift-schedule", "podlift-slot", "podlift-request"
# Values of SLOT beside a slot: by the schedule, or a firing that a user requested.
BY_CRON, BY_HAND = "cron", "manual"
# A slot in a label, which has no capital letters and no colons.
_STAMP = "%Y%m%dt%H%M%Sz"


def label_of(slot: float) -> str:
    """Return the label of a keeper's job that names its slot, a Unix time."""
    return datetime.fromtimestamp(slot, timezone.utc).strftime(_STAMP)


def slot_of(label: str) -> float | None:
    """Return the slot that the label of a keeper's job names; None if it names none."""
    try:
        return datetime.strptime(label, _STAMP).replace(tzinfo=timezone.utc).timestamp()
    except ValueError:
        return None
