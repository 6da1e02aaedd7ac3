"""The time and money used by the jobs of a run, and the rest of its limits for another job, or for a month. Pure.

The final record of each job holds its own part (`booked`), so the records give the spending of a run on every machine, even
after the cloud has forgotten its jobs. The limits of a run hold for all of its jobs together, including jobs before a resume.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ..hardware.pricing import DEFAULT_TIMEOUT_S, Price
from ..job.plan import Plan
from ..job.policies import Limits
from ..status import Reason, Status
from ..text import compact_duration, duration, joined, money

FIELD = "spent"
# Less than this is rounding.
_CENT = 0.005
# A shorter job would end before its machines are ready.
_LEAST_S = 600.0
# With less time left, a next job would end before it has loaded its checkpoint and saved another one.
NEXT_JOB_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Spent:
    """The running time of jobs, and its price.

    Args:
        seconds: time for which their machines ran.
        usd: US dollars; None where nothing is billed, as on an emulator, or if nothing is known.
        at_least: True if a part of the price is unknown, which `usd` does not hold.
    """

    seconds: float = 0.0
    usd: float | None = None
    at_least: bool = False

    def __add__(self, other: Spent) -> Spent:
        amounts_usd = [part.usd for part in (self, other) if part.usd is not None]
        return Spent(
            seconds=self.seconds + other.seconds,
            usd=sum(amounts_usd) if amounts_usd else None,
            at_least=self.at_least or other.at_least,
        )

    @classmethod
    def of(cls, status: Status) -> Spent:
        """Return the spending in a status."""
        return cls(seconds=status.spent_s or 0.0, usd=status.spent_usd, at_least=status.spent_at_least)

    def merged(self, status: Status) -> Status:
        """Return a status with this spending added."""
        now = Spent.of(status) + self
        return replace(status, spent_s=now.seconds, spent_usd=now.usd, spent_at_least=now.at_least)

    def __str__(self) -> str:
        if self.usd is None:
            return f"{duration(self.seconds)}{', at an unknown price' if self.at_least else ''}"
        return f"{'at least ' if self.at_least else ''}{money(self.usd)} in {duration(self.seconds)}"


def spent(started: float | None, until: float | None, price: Price | None) -> Spent:
    """Return the use of one job from its start, None if it never ran, until its end or now, in Unix time.

    `price` is None where nothing is billed.
    """
    seconds = 0.0 if started is None or until is None else max(0.0, until - started)
    if price is None:
        return Spent(seconds=seconds)
    usd = price.at_least * seconds / 3600 if price.at_least or price.own is not None else None
    return Spent(seconds=seconds, usd=usd, at_least=price.own is None and seconds > 0)


def booked(used: Spent) -> dict[str, object]:
    """Return the spending for the final record of a job: {"spent": {...}}."""
    return {FIELD: {"seconds": used.seconds, "usd": used.usd, "at_least": used.at_least}}


def total(finals: Iterable[Mapping[str, object]]) -> Spent | None:
    """Return the total use of ended jobs, by the data of their final records; None if nothing is booked there."""
    whole: Spent | None = None
    for data in finals:
        own = data.get(FIELD)
        if isinstance(own, Mapping):
            usd = None if own["usd"] is None else float(own["usd"])
            part = Spent(seconds=float(own["seconds"]), usd=usd, at_least=bool(own["at_least"]))
            whole = part if whole is None else whole + part
    return whole


@dataclass(frozen=True, kw_only=True)
class NextJob:
    """Whether another job may be made, and its limit.

    Args:
        timeout_s: how long it may run; None for no limit.
        refused: why it is not made, `timeout` or `budget`; None if it may be.
        why: the same as a sentence, with the amount spent.
    """

    timeout_s: float | None
    refused: Reason | None = None
    why: str = ""


def next_job(
    limits: Limits,
    used: Spent,
    price: Price | None,
    where: str,
    *,
    counted_s: float | None = None,
    keeper: Price | None = None,
) -> NextJob:
    """Return the rest of a run's limits for its next job.

    Args:
        limits: the limits of the run.
        used: the use of its jobs so far.
        price: the price of the next job; None where nothing is billed.
        where: its place, in words.
        counted_s: the running time that counts against the time limit, which a resume begins again; None for all.
        keeper: the price of a keeper beside it, if it is not made yet.
    """
    ran_s = used.seconds if counted_s is None else counted_s
    most = None if price is None else limits.max_cost_usd
    # A limit on the cost needs an end: Vertex AI's own would begin again with each job.
    whole_s = limits.timeout_s if limits.timeout_s is not None or most is None else DEFAULT_TIMEOUT_S
    left_s = None if whole_s is None else whole_s - ran_s
    if left_s is not None and whole_s is not None and left_s < (NEXT_JOB_S if ran_s else 0.0):
        rest = f" but for {duration(left_s)}, too little for another job" if left_s > 0 else ""
        limit = f"The time limit of the run is used up{rest}: its jobs ran for {duration(ran_s)}"
        why = f"{limit}, and timeout={compact_duration(whole_s)!r} holds for all of them together."
        return NextJob(timeout_s=0.0, refused=Reason.TIMEOUT, why=why)
    if price is None:
        return NextJob(timeout_s=left_s)
    longest_s = DEFAULT_TIMEOUT_S if left_s is None else left_s
    parts = [(f"a job in {where}", replace(price, timeout_s=longest_s))]
    parts += [("its keeper", keeper)] if keeper is not None else []
    why = "" if most is None else _too_much(limits, most, used, parts)
    return NextJob(timeout_s=left_s, refused=Reason.BUDGET if why else None, why=why)


def _too_much(limits: Limits, most: float, used: Spent, parts: Sequence[tuple[str, Price]]) -> str:
    """Return why another job would break the limit on the cost, "" if it would not; the first part is the job."""
    before = f"The run has spent {used}" if used.seconds else "The run has spent nothing yet"
    unknown = [what for what, part in parts if part.own is None]
    if unknown and not limits.allow_unknown_price:
        unknown_price = f"no source gives the price of {joined(unknown, 'and')}"
        return f"{before}, and {unknown_price}: max_cost_usd={most:g} cannot be enforced."
    left, at_most = most - (used.usd or 0.0), sum(part.known_cap for _, part in parts)
    if at_most <= left + _CENT:
        return ""
    (what, job), *keeper = parts
    least = "at least " if unknown else ""
    hours = f"{money(job.at_least)} an hour for {duration(job.timeout_s)}"
    hours += "".join(f", and {money(part.known_cap)} for {what}" for what, part in keeper)
    cost = f"{what.replace('a job', 'another job')} may cost {least}{money(at_most)}: {hours}"
    return f"{before}, and {cost}. That is more than the {money(max(left, 0.0))} left of max_cost_usd={most:g}."


def remedies(limits: Limits, used: Spent, price: Price, next_job: NextJob, *, keeper: Price | None = None) -> str:
    """Return the options of podlift resume that allow a job in spite of a limit on the cost, "" for none."""
    if not limits.allow_unknown_price and (price.own is None or (keeper is not None and keeper.own is None)):
        return ""
    spent_usd = (used.usd or 0.0) + (keeper.known_cap if keeper else 0.0)
    left = (limits.max_cost_usd or 0.0) - spent_usd
    rest_s = math.floor(left / price.at_least * 60) * 60 if price.at_least else 0
    longest_s = DEFAULT_TIMEOUT_S if next_job.timeout_s is None else next_job.timeout_s
    shorter = [f"--timeout {compact_duration(rest_s)}"] if rest_s >= _LEAST_S else []
    return " or ".join([*shorter, f"--max-cost-usd {math.ceil(spent_usd + price.at_least * longest_s / 3600)}"])


def most_usd(plan: Plan) -> float | None:
    """Return the maximum cost of a run and its own keeper, counting known prices only; None where nothing is billed."""
    most = max((price.known_cap for price in plan.prices), default=None)
    return most if most is None or plan.keeper is None else most + plan.keeper.price.known_cap


def over_month(plan: Plan, month_usd: float, spent_usd: float, keeper: Price | None = None) -> str:
    """Return why a firing could break a schedule's limit of the month, "" if it could not."""
    return over_limit(plan, month_usd, spent_usd, keeper, what="firing", span=" a month")


def over_limit(
    plan: Plan, limit_usd: float, spent_usd: float, keeper: Price | None = None, *, what: str, span: str = ""
) -> str:
    """Return why a run could break a limit on the cost of several runs, "" if it could not.

    Args:
        plan: the plan of the run.
        limit_usd: the limit, in US dollars.
        spent_usd: the cost of the other runs.
        keeper: the price of the keeper that a trigger starts, None if it starts none. A run's own keeper counts, too.
        what: the word for the run.
        span: the words for the time of the limit.
    """
    most, prices, limits = most_usd(plan), plan.prices, plan.job.limits
    if most is None:
        return ""
    if prices and limits.timeout_s is None and limits.max_cost_usd is None:
        # Each job that follows a preemption may run for Vertex AI's own limit.
        why = f"without timeout or max_cost_usd, the total cost of a {what}'s jobs has no limit"
        return f"budget: {why}, so that {money(limit_usd)}{span} cannot be enforced"
    keepers = [price for price in (keeper, plan.keeper.price if plan.keeper else None) if price is not None]
    most += keeper.known_cap if keeper else 0.0
    unknown_keeper = any(price.own is None for price in keepers)
    unknown = any(price.own is None for price in prices) or unknown_keeper
    if unknown and not limits.allow_unknown_price:
        job = "this job and its keeper" if unknown_keeper else "this job"
        return f"budget: no source gives the price of {job}, so that {money(limit_usd)}{span} cannot be enforced"
    if spent_usd + most <= limit_usd + _CENT:
        return ""
    keepers_usd = sum(price.known_cap for price in keepers)
    of_keeper = f", {money(keepers_usd)} of it for its keeper" if keepers_usd else ""
    spent = f"{money(spent_usd)} of {money(limit_usd)}{span} are spent"
    return f"budget: {spent}, and this {what} may cost {money(most)}{of_keeper}"
