"""What a schedule may spend in a month. Pure.

Spent is what the records of the month hold: the cost of each run that has ended, and the most that each other one can cost.
"""

from __future__ import annotations

from ..hardware import pricing
from ..spec.plan import Plan
from ..text import money

# Less than this is rounding.
_CENT = 0.005


def most_usd(plan: Plan) -> float | None:
    """Return the most that a firing can cost, as far as prices are known; None where nothing is billed."""
    found = _prices(plan)
    return max(price.at_least * price.timeout_s / 3600 for price in found) if found else None


def too_much(plan: Plan, month_usd: float, spent_usd: float) -> str:
    """Return why a firing could break the limit of its month, "" if it could not."""
    most = most_usd(plan)
    if most is None:
        return ""
    if any(price.own is None for price in _prices(plan)) and not plan.job.limits.allow_unknown_price:
        return f"budget: no source gives the price of this job, so that {money(month_usd)} a month cannot be enforced"
    if spent_usd + most <= month_usd + _CENT:
        return ""
    return f"budget: {money(spent_usd)} of {money(month_usd)} a month are spent, and this firing may cost {money(most)}"


def _prices(plan: Plan) -> list[pricing.Price]:
    rentals = () if plan.emulator else plan.target.rentals(plan.job.resources, plan.job.limits)
    return [pricing.price(rented) for rented in rentals]
