"""Books the cost of a firing on its month, so that simultaneous firings cannot exceed the month's limit together."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from ..errors import PodliftError, RunNotFoundError
from ..hardware.pricing import Price
from ..job.plan import Plan
from ..logs import logger
from ..records import spending
from ..status import State
from .records import SKIPPED, Book, ScheduleRecord, SlotRecord
from .runs import Runs, url_of

_log = logger("schedules")


def booked(
    book: Book, schedule: ScheduleRecord, record: SlotRecord, plan: Plan, price: Callable[[], Price | None], runs: Runs
) -> str:
    """Book a firing; return why the month's limit does not allow it, "" if it does.

    The bookings are read before the records, and replaced only if they have not changed since. If two firings find the same
    money, one of them tries again and finds less.
    """
    limit_usd, most_usd = schedule.spec.max_cost_usd_per_month, spending.most_usd(plan)
    if limit_usd is None or most_usd is None:
        return ""
    month, keeper = record.slot[:7], price()
    while True:
        bookings, generation = book.bookings(schedule, month)
        slots = book.of_month(schedule, record.moment)
        others = [slot for slot in slots if slot.key != record.key]
        spent_usd = sum(
            _booked(slot, bookings) if slot.is_open else _used(slot, book.root, runs, most_usd) for slot in others
        )
        # The keeper of this firing counts with its maximum cost.
        spent_usd += of_keepers((slot for slot in slots if slot.keeper != record.keeper), keeper)
        reason = spending.over_month(plan, limit_usd, spent_usd, keeper)
        if reason or book.put_bookings(schedule, month, {**bookings, record.key: most_usd}, generation):
            return reason


def _booked(record: SlotRecord, bookings: dict[str, float]) -> float:
    # Booked, and not yet in the record.
    return record.cost_usd or bookings.get(record.key, 0.0)


def _used(record: SlotRecord, root: str, runs: Runs, most_usd: float) -> float:
    """Return the cost of an ended run. If a user has resumed it since, its time limit began again."""
    known_usd = record.cost_usd or 0.0
    if not record.run or record.state in (State.SUCCEEDED.value, SKIPPED):
        return known_usd
    try:
        status, plan = runs.state_of(url_of(root, record))
    except RunNotFoundError:
        return known_usd
    except PodliftError as error:
        # An unreadable run must not prevent other slots from starting.
        _log.warning(f"{record.run} counts with its maximum cost, because it cannot be read: {error}")
        return known_usd + most_usd
    # Its resume may have given it another time limit.
    rest_usd = 0.0 if status.state.terminal else spending.most_usd(plan) or most_usd
    return max(known_usd, status.spent_usd or 0.0) + rest_usd


def of_keepers(records: Iterable[SlotRecord], price: Price | None) -> float:
    """Return the cost of the keepers of slots, the maximum for running keepers. One keeper may have served two slots."""
    spans = dict[str, tuple[float, float]]()
    for slot in records:
        if slot.keeper:
            first, last = spans.get(slot.keeper, (slot.taken, slot.taken))
            spans[slot.keeper] = min(first, slot.taken), max(last, math.inf if slot.ended is None else slot.ended)
    if price is None:
        return 0.0
    return sum(min(last - first, price.timeout_s) for first, last in spans.values()) / 3600 * price.at_least
