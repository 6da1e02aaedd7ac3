"""The slots of one schedule, as one process reads and changes their records: the newest, and older ones they refer to."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import takewhile

from ..status import State
from .records import SKIPPED, TOLERANCE_S, Book, ScheduleRecord, SlotRecord, hour_of, instant_of, key_of, utc

# Of older slots, only open ones matter; records are searched back to this number.
REMEMBERED = 400
FAILED = (State.FAILED.value, State.LOST.value)
_HOUR = timedelta(hours=1)
_MOST_LISTED = timedelta(hours=48)


class RecentSlots:
    """The newest records of a schedule. Every change of one is by compare-and-swap."""

    schedule: ScheduleRecord
    now: float  # by the clock of the records

    def __init__(self, book: Book) -> None:
        self.book = book
        self._forget()

    def _forget(self) -> None:
        self.records: dict[str, SlotRecord] = {}
        self.last: datetime | None = None  # newest regular slot that has come and has a record
        self._listed: datetime | None = None  # when the records were listed

    def read(self, schedule: ScheduleRecord, until: datetime, now: float) -> None:
        """Read the records of slots so far that other processes have added or changed since the last call."""
        if self._listed is not None and (self._listed - until).total_seconds() > TOLERANCE_S:
            # The clock was set back.
            self._forget()
        self.schedule, self.now, before = schedule, now, self._listed
        listed = self.book.keys(schedule, _hours_since(before, until))
        self._read([*(record.key for record in self.open), *_newest(listed, until)])
        if before is None:
            self._read([key for record in self.newest_first for key in (record.earlier, record.success)])
        # Last: after an outage in between, all of them are listed again.
        self._listed = until

    def _read(self, keys: Iterable[str]) -> None:
        """Read records by their names, except the ones known to have ended; the name "" is ignored."""
        records = self.records
        unread_keys = [key for key in dict.fromkeys(keys) if key and (key not in records or records[key].is_open)]
        for record in self.book.slots(self.schedule, unread_keys):
            self._add(record)

    def _add(self, record: SlotRecord) -> None:
        """Remember a record, unless its slot is in the future: then a clock that was ahead has made it."""
        if record.is_early(self.now):
            self.records.pop(record.key, None)
            return
        self.records[record.key] = record
        instant = instant_of(record.key)
        if record.cause != "manual" and instant.timestamp() <= self.now:
            self.last = max(self.last or instant, instant)
        if len(self.records) > REMEMBERED:
            to_keep = {self.success.key} if self.success else set()
            old = min(
                (key for key, slot in self.records.items() if not slot.is_open and key not in to_keep), default=None
            )
            self.records.pop(old or "", None)

    def take(self, record: SlotRecord) -> SlotRecord | None:
        """Create the record of a slot, or replace one of a clock that was ahead; None if another process has taken the slot."""
        open_slots, success = self.open, self.success
        # A process that begins later needs these, however far back they are.
        references = {"earlier": open_slots[-1].key if open_slots else "", "success": success.key if success else ""}
        record = replace(record, **references)  # type: ignore[arg-type]
        if self.book.take(self.schedule, record):
            self._add(record)
            return record
        stored = self.book.slot(self.schedule, record.key)
        if stored.is_early(self.now):
            record = replace(record, notes=(*record.notes, f"booked before its time ({stored.reason})"))
            if self.book.update(self.schedule, stored, record):
                self._add(record)
                return record
            stored = self.book.slot(self.schedule, record.key)
        self._add(stored)
        return None

    def change(self, record: SlotRecord, **fields: object) -> SlotRecord | None:
        """Change the record of a slot; None if another process was faster: its record counts."""
        after = replace(record, **fields)  # type: ignore[arg-type]
        if self.book.update(self.schedule, record, after):
            self._add(after)
            return after
        self._add(self.book.slot(self.schedule, record.key))
        return None

    def unrecorded(self, until: datetime) -> list[datetime]:
        """Return the slots after the newest one that has a record."""
        since = utc(self.schedule.since)
        last = max(since, self.last or since)
        slots = self.schedule.spec.slots
        return list(slots.between(last + timedelta(seconds=1), until + timedelta(microseconds=1)))

    @property
    def newest_first(self) -> list[SlotRecord]:
        return [self.records[key] for key in sorted(self.records, reverse=True)]

    @property
    def open(self) -> list[SlotRecord]:
        return [record for record in reversed(self.newest_first) if record.is_open]

    @property
    def success(self) -> SlotRecord | None:
        return next((record for record in self.newest_first if record.state == State.SUCCEEDED.value), None)

    def skipped_until(self, record: SlotRecord) -> int:
        """Return how many slots in a row were skipped, up to this one."""
        earlier = (slot for slot in self.newest_first if slot.key <= record.key)
        return sum(1 for _ in takewhile(lambda slot: slot.state == SKIPPED, earlier))

    @property
    def failures(self) -> int:
        """Return how many slots have failed since the last success or the end of a pause."""

        def counts(record: SlotRecord) -> bool:
            before = (record.ended or 0.0) < self.schedule.pause_ended and not record.is_open
            return record.state != State.SUCCEEDED.value and not before

        return sum(record.state in FAILED for record in takewhile(counts, self.newest_first))


def _hours_since(since: datetime | None, now: datetime) -> list[str]:
    """Return the folders to list for the records since then; "" stands for all."""
    if since is None or abs(now - since) > _MOST_LISTED:
        return [""]
    # A slot may have been recorded a little later than it was.
    hours = int(max(now - since, timedelta()) / _HOUR) + 2
    return [f"{hour_of(now - back * _HOUR)}/" for back in reversed(range(hours))]


def _newest(keys: Sequence[str], now: datetime) -> list[str]:
    """Return the names of the newest records, and beside them the newest ones of slots to come."""
    coming = bisect_right(keys, key_of(now) + "~")
    return [*keys[max(0, coming - REMEMBERED) : coming], *keys[coming:][-REMEMBERED:]]
