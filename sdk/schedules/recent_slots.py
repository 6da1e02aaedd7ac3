"""What a server knows of the slots of a schedule: the newest records, and those that they refer to."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from ..status import State
from .records import TOLERANCE_S, ScheduleRecord, ScheduleSpec, SlotRecord, hour_of, instant_of, key_of

# Of older slots, only open ones matter; records are searched back to this number.
REMEMBERED = 400
_HOUR = timedelta(hours=1)
_MOST_LISTED = timedelta(hours=48)


@dataclass
class RecentSlots:
    """One schedule, and the newest records of its slots by their keys."""

    schedule: ScheduleRecord
    records: dict[str, SlotRecord] = field(default_factory=dict)
    last: datetime | None = None  # newest regular slot that has come and has a record
    listed: datetime | None = None  # when the records were listed
    now: float = 0.0  # by the clock of the records

    @property
    def spec(self) -> ScheduleSpec:
        return self.schedule.spec

    def is_ahead_of(self, now: datetime) -> bool:
        """Return whether these records were listed later than now: the clock was set back."""
        return self.listed is not None and (self.listed - now).total_seconds() > TOLERANCE_S

    def add(self, record: SlotRecord) -> None:
        """Remember a record, unless a clock that was ahead has made it: its slot is still to come."""
        if record.is_early(self.now):
            self.records.pop(record.key, None)
            return
        self.records[record.key] = record
        instant = instant_of(record.key)
        if record.cause != "manual" and instant.timestamp() <= self.now:
            self.last = max(self.last or instant, instant)
        if len(self.records) > REMEMBERED:
            kept = {self.success.key} if self.success else set()
            old = min((key for key, slot in self.records.items() if not slot.is_open and key not in kept), default=None)
            self.records.pop(old or "", None)

    def references(self) -> dict[str, str]:
        """Return the fields of a new record that refer to older ones."""
        success, going_on = self.success, self.open
        return {"earlier": going_on[-1].key if going_on else "", "success": success.key if success else ""}

    @property
    def newest_first(self) -> list[SlotRecord]:
        return [self.records[key] for key in sorted(self.records, reverse=True)]

    @property
    def open(self) -> list[SlotRecord]:
        return [record for record in reversed(self.newest_first) if record.is_open]

    @property
    def success(self) -> SlotRecord | None:
        return next((record for record in self.newest_first if record.state == State.SUCCEEDED.value), None)


def hours_since(since: datetime | None, now: datetime) -> list[str]:
    """Return the folders to list for the records since then; "" stands for all."""
    if since is None or abs(now - since) > _MOST_LISTED:
        return [""]
    # A slot may have been recorded a little later than it was.
    hours = int(max(now - since, timedelta()) / _HOUR) + 2
    return [f"{hour_of(now - back * _HOUR)}/" for back in reversed(range(hours))]


def newest(keys: Sequence[str], now: datetime) -> list[str]:
    """Return the names of the newest records, and apart from these those of slots that are to come."""
    coming = bisect_right(keys, key_of(now) + "~")
    return [*keys[max(0, coming - REMEMBERED) : coming], *keys[coming:][-REMEMBERED:]]
