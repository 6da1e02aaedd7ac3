"""Instants of a schedule that a clock change skips or repeats, and the nearest hour that is safe. Pure.

cron fires a skipped instant late and a repeated one once. Services differ, so that an hour without clock changes is better.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from zoneinfo import ZoneInfo

from .slots import Cron

_YEAR = timedelta(days=366)
_STEP = timedelta(hours=6)


@dataclass(frozen=True)
class ClockChange:
    """Wall-clock times from `start` to before `end` are skipped, or repeated."""

    start: datetime  # without a zone, as the following one
    end: datetime
    skipped: bool

    def holds(self, wall: datetime) -> bool:
        return self.start <= wall < self.end


def changes(zone: ZoneInfo, start: datetime, end: datetime) -> Iterator[ClockChange]:
    """Yield the clock changes of a zone in a span of time."""
    low = start.astimezone(timezone.utc)
    while low < end:
        high = low + _STEP
        if _offset(zone, low) != _offset(zone, high):
            yield _change(zone, low, high)
        low = high


def _offset(zone: ZoneInfo, moment: datetime) -> timedelta:
    return moment.astimezone(zone).utcoffset() or timedelta()


def _change(zone: ZoneInfo, low: datetime, high: datetime) -> ClockChange:
    """Find the second at which the offset changes between two moments."""
    before, after = _offset(zone, low), _offset(zone, high)
    while high - low > timedelta(seconds=1):
        middle = low + (high - low) // 2
        low, high = (middle, high) if _offset(zone, middle) == before else (low, middle)
    moment = high.replace(microsecond=0, tzinfo=None)
    first, second = sorted((moment + before, moment + after))
    return ClockChange(first, second, skipped=after > before)


def warnings(cron: Cron, now: datetime, service: str = "") -> list[str]:
    """Return a sentence for each slot of the next year that lies inside a clock change.

    `service` fires the schedule, in a way that is not known there; "" for podlift's own server.
    """
    if not cron.is_fixed:
        return []
    wall = Cron(cron.expression, "UTC")
    known = list(changes(cron.zone, now, now + _YEAR))
    found = []
    for change in known:
        start, end = (each.replace(tzinfo=timezone.utc) for each in (change.start, change.end))
        for slot in wall.between(start, end):
            when = f"{slot:%Y-%m-%d %H:%M} in {cron.time_zone}"
            does = f"it fires at {change.end:%H:%M}" if change.skipped else "it fires once"
            does = f"what {service} does there is not known here" if service else does
            what = f"{'does not exist' if change.skipped else 'exists twice'}: {does}"
            found.append(f"{when} {what} (clock change).{_safer(cron, known, slot)}")
            break
    return found


def _safer(cron: Cron, known: list[ClockChange], slot: datetime) -> str:
    """Return the nearest hour at which no clock change of the year can fall."""
    words = cron.expression.split()
    wall = slot.replace(tzinfo=None)
    for distance in (1, -1, 2, -2, 3, -3):
        hour = wall.hour + distance
        if 0 <= hour < 24 and not any(
            change.holds(change.start.replace(hour=hour, minute=wall.minute, second=0)) for change in known
        ):
            fields = [*words[:-4], str(hour), *words[-3:]]
            suggested = f": {' '.join(fields)!r}" if words[-4].isdigit() else ""
            return f" The nearest safe hour is {hour}{suggested}."
    return ""
