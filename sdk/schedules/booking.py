"""Books the cost of a firing on its month, so that firings of one moment cannot break the limit of the month together."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timezone

from ..job.plan import Plan
from ..records import spending
from .records import Book, ScheduleRecord, SlotRecord


def booked(
    book: Book, schedule: ScheduleRecord, record: SlotRecord, plan: Plan, hourly_usd: float | None, now: float
) -> str:
    """Book a firing; return why the month's limit does not allow it, "" if it does.

    What was booked is read first, then the records, and the bookings are replaced unless they have changed: of two firings
    that find the same money, one tries again and finds less.
    """
    limit_usd, most_usd = schedule.spec.max_cost_usd_per_month, spending.most_usd(plan)
    if limit_usd is None or most_usd is None:
        return ""
    month = record.slot[:7]
    while True:
        bookings, generation = book.bookings(schedule, month)
        found = _month(book, schedule, record)
        spent_usd = sum(_counted(each, bookings) for each in found if each.key != record.key)
        spent_usd += _of_keepers(found, hourly_usd or 0.0, now)
        reason = spending.over_month(plan, limit_usd, spent_usd, hourly_usd)
        if reason or book.put_bookings(schedule, month, {**bookings, record.key: most_usd}, generation):
            return reason


def _month(book: Book, schedule: ScheduleRecord, record: SlotRecord) -> list[SlotRecord]:
    """Return the records of the month of a slot, in the zone of the schedule."""
    months = {record.moment.astimezone(timezone.utc), record.moment.replace(day=1, hour=0).astimezone(timezone.utc)}
    found = book.slots(schedule, book.keys(schedule, sorted({f"{each:%Y-%m-}" for each in months})))
    return [each for each in found if each.slot[:7] == record.slot[:7]]


def _counted(record: SlotRecord, bookings: dict[str, float]) -> float:
    # Booked, and not yet in the record.
    return record.cost_usd or (bookings.get(record.key, 0.0) if record.is_open else 0.0)


def _of_keepers(records: Iterable[SlotRecord], hourly_usd: float, now: float) -> float:
    """Return what the keepers of slots have cost; one may have served two slots."""
    spans = dict[str, tuple[float, float]]()
    for each in records:
        if each.keeper:
            first, last = spans.get(each.keeper, (each.taken, each.taken))
            spans[each.keeper] = min(first, each.taken), max(last, now if each.ended is None else each.ended)
    return sum(last - first for first, last in spans.values()) / 3600 * hourly_usd
