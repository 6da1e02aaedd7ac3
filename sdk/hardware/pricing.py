"""What a run on Vertex AI may cost, and the quotas it needs. Pure: from the table of hardware alone.

A price is known where each of its parts is: one that no source tells makes the whole unknown, and the parts that are known
are a lower bound.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from . import Provisioning, Rate, machines, regions
from .accelerators import Pool, pools

CURRENCY = "USD"
# Of Vertex AI, for a job that names no timeout.
DEFAULT_TIMEOUT_S = 7 * 86400.0
_METRIC = "aiplatform.googleapis.com/custom_model_training_"
# Families of machines whose CPUs one quota counts; those of a2 and a3 machines are not limited.
_CPU_QUOTAS = {"n1": "cpus", "e2": "cpus", "n2": "n2_cpus"}


@dataclass(frozen=True, kw_only=True)
class Price:
    """What all machines of a job cost together, in US dollars; boot disks come on top.

    Args:
        region: where.
        per_hour: one hour on demand; None where a part of it is not known.
        spot: one hour on spot machines; likewise.
        own: one hour as the job asks for it: on demand, spot or flex-start; likewise.
        at_least: the parts of `own` that are known.
        timeout_s: after how long the job is stopped, in seconds.
        cap: the most it can cost: `own` for all of `timeout_s`.
        missing: parts of `own` that are not known.
        exact: False for an estimate.
        source: who says so.
        date: when; of several, the oldest.
        currency: always "USD".
    """

    region: str
    per_hour: float | None
    spot: float | None
    own: float | None
    at_least: float
    timeout_s: float
    cap: float | None
    missing: tuple[str, ...]
    exact: bool
    source: str
    date: str
    currency: str = CURRENCY


@dataclass(frozen=True, kw_only=True)
class Quota:
    """A limit of the project that a job counts against.

    Args:
        metric: its full name; None where it is not known.
        amount: how much of it the job takes; None likewise.
        what: what is counted, for people.
    """

    metric: str | None
    amount: int | None
    what: str


def price(job: Mapping[str, Any], target: Mapping[str, Any], region: str | None = None) -> Price:
    """Return what a job costs.

    Args:
        job: the Job as JSON.
        target: the Vertex as JSON.
        region: where; by default the first of the target's.
    """
    region = region or first_region(target)
    asked: Provisioning = job["resources"].get("provisioning", "standard")
    parts = [part for pool in pools(job["resources"]) for part in _parts(pool)]
    own = [(what, _rate(rates, asked, region), times) for what, rates, times in parts]
    found = [rate for _, rate, _ in own if rate]
    missing = tuple(dict.fromkeys(what for what, rate, _ in own if rate is None))
    at_least = sum(rate.on_vertex * times for _, rate, times in own if rate)
    timeout_s = job["limits"].get("timeout_s") or DEFAULT_TIMEOUT_S
    return Price(
        region=region,
        per_hour=_sum(parts, "standard", region),
        spot=_sum(parts, "spot", region),
        own=None if missing else at_least,
        at_least=at_least,
        timeout_s=timeout_s,
        cap=None if missing else at_least * timeout_s / 3600,
        missing=missing,
        exact=all(rate.source.exact for rate in found),
        source=", ".join(dict.fromkeys(rate.source.name for rate in found)),
        date=min((rate.source.date for rate in found), default=""),
    )


def of_row(pool: Pool, region: str, kind: Provisioning) -> float | None:
    """Return what one machine of a pool costs for one hour, None where that is not known."""
    return _sum([(what, rates, 1) for what, rates, _ in _parts(pool)], kind, region)


def first_region(target: Mapping[str, Any]) -> str:
    """Return the region that is asked for first."""
    return next(iter(target.get("regions") or ()), regions.DEFAULT)


_Part = tuple[str, tuple[Rate, ...], int]


def _parts(pool: Pool) -> Iterator[_Part]:
    row = pool.accelerator
    if row.family == "cpu":
        yield pool.machine, machines.RATES.get(pool.machine, ()), pool.replicas
        return
    yield row.name, row.rates, pool.replicas
    if not row.includes_machine:
        yield f"the machine {pool.machine}", machines.RATES.get(pool.machine, ()), pool.replicas


def _rate(rates: tuple[Rate, ...], kind: Provisioning, region: str) -> Rate | None:
    return next((rate for rate in rates if rate.kind == kind and region in rate.regions), None)


def _sum(parts: list[_Part], kind: Provisioning, region: str) -> float | None:
    total = 0.0
    for _, rates, times in parts:
        rate = _rate(rates, kind, region)
        if rate is None:
            return None
        total += rate.on_vertex * times
    return total


def quotas(job: Mapping[str, Any]) -> list[Quota]:
    """Return the quotas that a job counts against, in every region that it may run in."""
    resources = job["resources"]
    borrowed = resources.get("provisioning", "standard") in ("spot", "flex")
    counted: dict[tuple[str | None, str], int | None] = {}
    for pool in pools(resources):
        for name, what, each in _counted(pool, resources.get("disk_gb", 100)):
            metric = _metric(name, pool, borrowed=borrowed)
            before = counted.get((metric, what), 0)
            counted[metric, what] = None if each is None or before is None else before + each * pool.replicas
    return [Quota(metric=metric, amount=amount, what=what) for (metric, what), amount in counted.items()]


def _counted(pool: Pool, disk_gb: int) -> Iterator[tuple[str | None, str, int | None]]:
    """Yield the name of each quota of one machine, what it counts, and how many."""
    row = pool.accelerator
    if row.family != "cpu":
        # Whether a TPU's quota counts cores or chips is not documented.
        yield row.quota, row.title, row.count if row.family == "gpu" else None
    family = pool.machine.partition("-")[0]
    if family in _CPU_QUOTAS:
        yield _CPU_QUOTAS[family], f"CPUs of {family} machines", machines.vcpus(pool.machine)
    yield "pd_ssd", "GB of boot disks", disk_gb


def _metric(name: str | None, pool: Pool, *, borrowed: bool) -> str | None:
    if name is None:
        return None
    if not borrowed or name == "pd_ssd":
        return f"{_METRIC}{name}"
    # Spot and flex-start count against quotas of their own; of TPUs and of n2 machines their names are not known.
    return None if name.startswith("tpu") or name == "n2_cpus" else f"{_METRIC}preemptible_{name}"


def lines(job: Mapping[str, Any], target: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return what a plan says about money and quotas, as (label, text).

    Args:
        job: the Job as JSON.
        target: the Vertex as JSON.
    """
    found = price(job, target)
    kind = {"standard": "on demand", "spot": "on spot", "flex": "as flex-start"}
    asked = kind[job["resources"].get("provisioning", "standard")]
    amount = "unknown" if found.own is None else f"{money(found.own)} an hour"
    hourly = [f"{amount} {asked} in {found.region}"]
    if asked != "on spot" and found.spot is not None:
        hourly.append(f"{money(found.spot)} on spot")
    if asked != "on demand" and found.per_hour is not None:
        hourly.append(f"{money(found.per_hour)} on demand")
    if found.missing:
        hourly.append(f"no source tells the price of {_and(found.missing)}")
        hourly += [f"the rest is {money(found.at_least)} an hour"] if found.at_least else []
    if found.source:
        hourly.append(f"{'' if found.exact else 'an estimate: '}{found.source}, {found.date}; boot disks come on top")
    text = [("price", "; ".join(hourly))]
    limit = "Vertex AI's default timeout" if job["limits"].get("timeout_s") is None else "the timeout"
    text.append(
        (
            "cap",
            f"{money(found.cap)}{'' if found.cap is None else ' at most'}, for {duration(found.timeout_s)}: {limit}",
        )
    )
    return [*text, *(("quota", _quota(quota)) for quota in quotas(job))]


def _quota(quota: Quota) -> str:
    amount = "" if quota.amount is None else f": {quota.amount}"
    return f"{quota.metric or 'unknown name'}{amount} ({quota.what})"


def money(usd: float | None) -> str:
    """Return an amount in words: "1.38 USD", "unknown"."""
    return "unknown" if usd is None else f"{usd:.4f} USD" if usd < 0.01 else f"{usd:,.2f} USD"


def duration(seconds: float) -> str:
    """Return seconds in the largest unit that divides them, or in hours: "7 days", "90 min", "5.7 h"."""
    for unit, length in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length and seconds % length == 0 and (unit != "min" or seconds <= 7200):
            return f"{seconds / length:.0f} {'day' if unit == 'days' and seconds == length else unit}"
    return f"{seconds:g} s" if seconds < 600 else f"{seconds / 3600:.1f} h"


def _and(words: tuple[str, ...]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
