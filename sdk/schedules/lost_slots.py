"""Completes slot records from failed keeper jobs, when the bucket has no record of a slot or only an open one. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone

from ..backends.triggers import FailedKeeper
from ..status import State
from .records import MISSED, SKIPPED, ScheduleRecord, SlotRecord, slot_of

# Failed keepers are looked for as far back as this many slots.
_SLOTS = 20


def horizon(schedule: ScheduleRecord, now: datetime) -> float:
    """Return the Unix time since which failed keepers are of interest."""
    cron = schedule.spec.slots
    last = cron.latest(now)
    before = cron.latest(last - timedelta(seconds=1)) if last else None
    if last is None or before is None:
        return schedule.created
    period = last.astimezone(timezone.utc) - before.astimezone(timezone.utc)
    return max(schedule.created, (last - _SLOTS * period).timestamp())


def complete(
    schedule: ScheduleRecord, records: Sequence[SlotRecord], others: Collection[str], failed: Sequence[FailedKeeper]
) -> list[SlotRecord]:
    """Complete the records from failed keepers, add a record for each slot known only from a keeper, and sort them.

    `others` are the keys of the records outside of `records`.
    """
    by_key, unrecorded = {record.key: record for record in records}, list[SlotRecord]()
    # The newest keeper of a slot counts.
    for keeper in reversed(failed):
        key, slot = slot_of(schedule, keeper)
        record, text = by_key.get(key), _sentence(keeper)
        if record is None or record in unrecorded:
            if key not in others:
                by_key[key] = _unrecorded(keeper, key, slot)
                unrecorded.append(by_key[key])
        # The full name of a job has the number of the project, or its name.
        elif record.is_open and record.keeper.rpartition("/")[2] == keeper.id:
            by_key[key] = replace(record, reason=text)
        elif record.state == SKIPPED and record.reason.startswith(MISSED):
            by_key[key] = replace(record, reason=f"missed: {text}")
    return [by_key[key] for key in sorted(by_key)]


def _sentence(keeper: FailedKeeper) -> str:
    text = f"its keeper, the job {keeper.id}, ended as {keeper.state}. {keeper.error} Next: {keeper.look}"
    return text.replace("  ", " ")


def _unrecorded(keeper: FailedKeeper, key: str, slot: datetime) -> SlotRecord:
    return SlotRecord(
        key=key,
        slot=slot.isoformat(),
        state=State.CANCELLED.value if keeper.state == State.CANCELLED.value else State.FAILED.value,
        reason=_sentence(keeper),
        cause="manual" if keeper.by_hand else "schedule",
        keeper=keeper.job,
        taken=keeper.created,
    )
