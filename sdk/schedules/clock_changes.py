"""Instants of a schedule that a clock change skips or repeats, and the nearest hour that is safe. Pure.

cron fires a skipped instant late and a repeated one once. Services differ, so an hour without clock changes is safer.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta, timezone, tzinfo

from .slots import Cron

_DAY, _DAYS = timedelta(days=1), 366


def warnings(cron: Cron, now: datetime, service: str = "") -> list[str]:
    """Return a sentence for each clock change of the next year in which a slot lies.

    `service` fires the schedule, with unknown behaviour at clock changes; "" for podlift's own server.
    """
    if not cron.is_fixed:
        return []
    wall, sentences = Cron(cron.expression, "UTC"), []
    today = now.astimezone(cron.zone).replace(hour=0, minute=0, second=0, microsecond=0)
    # A day and the next one are added as a calendar does.
    days = [
        day for day in (today + _DAY * count for count in range(_DAYS)) if day.utcoffset() != (day + _DAY).utcoffset()
    ]
    for day in days:
        for slot in wall.between(day.replace(tzinfo=timezone.utc), (day + _DAY).replace(tzinfo=timezone.utc)):
            before, after = _offsets(slot, cron.zone)
            if before == after:
                continue
            skipped = before < after
            later = (
                valid for valid in cron.after(slot.replace(tzinfo=cron.zone, fold=1)) if valid.utcoffset() == after
            )
            does = f"it fires at {next(later):%H:%M}" if skipped else "it fires once"
            does = f"the behaviour of {service} is unknown" if service else does
            what = f"{'does not exist' if skipped else 'exists twice'}: {does} (clock change)"
            sentences.append(f"{slot:%Y-%m-%d %H:%M} in {cron.time_zone} {what}.{_safer(cron, days, slot)}")
            break
    return sentences


def _offsets(wall: datetime, zone: tzinfo) -> tuple[timedelta, timedelta]:
    """Return the UTC offsets of a wall-clock time before and after a change; they are equal if the time exists once."""
    before, after = (wall.replace(tzinfo=zone, fold=fold).utcoffset() or timedelta() for fold in (0, 1))
    return before, after


def _safer(cron: Cron, days: Sequence[datetime], slot: datetime) -> str:
    """Return the nearest hour that no clock change of these days skips or repeats."""
    words = cron.expression.split()
    for distance in (1, -1, 2, -2, 3, -3):
        hour = slot.hour + distance
        if hour not in range(24):
            continue
        changes = (_offsets(day.replace(hour=hour, minute=slot.minute), cron.zone) for day in days)
        if all(before == after for before, after in changes):
            fields = [*words[:-4], str(hour), *words[-3:]]
            suggested = f": {' '.join(fields)!r}" if words[-4].isdigit() else ""
            return f" The nearest safe hour is {hour}{suggested}."
    return ""
