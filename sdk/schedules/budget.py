"""What a schedule may spend in a month. Pure.

Spent is what the records of the month hold: the cost of each run that has ended, the most that each other one can cost, and
the time of each keeper.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..hardware import pricing
from ..job.plan import Plan
from ..text import money
from .records import SlotRecord

# Less than this is rounding.
_CENT = 0.005


def most_usd(plan: Plan) -> float | None:
    """Return the most that a firing can cost, as far as prices are known; None where nothing is billed."""
    found = _prices(plan)
    return max(price.known_cap for price in found) if found else None


def of_keepers(records: Iterable[SlotRecord], hourly_usd: float, now: float) -> float:
    """Return what the keepers of slots have cost; one may have served two slots."""
    spans = dict[str, tuple[float, float]]()
    for each in records:
        if each.keeper:
            first, last = spans.get(each.keeper, (each.taken, each.taken))
            spans[each.keeper] = min(first, each.taken), max(last, now if each.ended is None else each.ended)
    return sum(last - first for first, last in spans.values()) / 3600 * hourly_usd


def too_much(plan: Plan, month_usd: float, spent_usd: float, hourly_usd: float = 0.0) -> str:
    """Return why a firing could break the limit of its month, "" if it could not; its keeper costs this much an hour."""
    most, prices = most_usd(plan), _prices(plan)
    if most is None:
        return ""
    most += max((price.timeout_s for price in prices), default=0.0) / 3600 * hourly_usd
    if any(price.own is None for price in prices) and not plan.job.limits.allow_unknown_price:
        return f"budget: no source gives the price of this job, so that {money(month_usd)} a month cannot be enforced"
    if spent_usd + most <= month_usd + _CENT:
        return ""
    return f"budget: {money(spent_usd)} of {money(month_usd)} a month are spent, and this firing may cost {money(most)}"


def _prices(plan: Plan) -> list[pricing.Price]:
    rentals = () if plan.emulator else plan.rentals
    return [pricing.price(rented) for rented in rentals]
