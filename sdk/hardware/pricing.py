"""What a run on Vertex AI may cost, and the quotas it needs. Pure: computed from the table of hardware, or from read prices.

A price is known only if each of its parts is known. Otherwise the known parts are a lower bound.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..text import and_more, duration, joined, money
from . import Provisioning, Rate, machines, regions
from .accelerators import Pool
from .price_table import KnownPrices, allowed

CURRENCY = "USD"
# Vertex AI's limit for a job without a timeout.
DEFAULT_TIMEOUT_S = 7 * 86400.0
_SHOWN, _CENT = 4, 0.01
_METRIC = "aiplatform.googleapis.com/custom_model_training_"
# The CPU quota of each machine family; the CPUs of a2 and a3 machines are not limited.
_CPU_QUOTAS = {"n1": "cpus", "e2": "cpus", "n2": "n2_cpus", "c2": "c2_cpus"}
PROVISIONING_WORDS = {"standard": "on demand", "spot": "on spot", "flex": "as flex-start"}


@dataclass(frozen=True, kw_only=True)
class Rental:
    """The machines that a job rents, and for how long."""

    pools: tuple[Pool, ...]
    regions: tuple[str, ...] = (regions.DEFAULT,)  # where it may run; the first is preferred
    provisioning: Provisioning = "standard"
    disk_gb: int = 100  # of each machine
    timeout_s: float | None = None
    known: KnownPrices | None = None  # read prices, which replace all of this package; None for those


@dataclass(frozen=True, kw_only=True)
class Price:
    """What all machines of a job cost together, in US dollars, without their boot disks."""

    region: str
    per_hour: float | None  # on demand; None if a part of it is unknown
    spot: float | None  # one hour on spot machines; likewise
    own: float | None  # one hour with the job's own provisioning; likewise
    at_least: float  # the known parts of `own`
    timeout_s: float
    cap: float | None  # the most the job can cost: `own` for all of `timeout_s`
    missing: tuple[str, ...]  # the unknown parts of `own`
    exact: bool  # False for an estimate
    source: str
    date: str  # of the oldest source
    currency: str = CURRENCY


@dataclass(frozen=True, kw_only=True)
class Quota:
    """A limit of the project that a job counts against; `metric` and `amount` are None if unknown."""

    metric: str | None
    amount: int | None
    what: str


def price(rented: Rental, region: str | None = None) -> Price:
    """Return what a job costs in a region, by default the first of its own."""
    region = region or rented.regions[0]
    parts = [part for pool in rented.pools for part in _parts(pool, rented.known, region)]
    own = [(what, _rate(rates, rented.provisioning, region), times) for what, rates, times in parts]
    found = [rate for _, rate, _ in own if rate]
    missing = tuple(dict.fromkeys(what for what, rate, _ in own if rate is None))
    at_least = sum(rate.on_vertex * times for _, rate, times in own if rate)
    timeout_s = rented.timeout_s or DEFAULT_TIMEOUT_S
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


_PricePart = tuple[str, tuple[Rate, ...], int]


def _parts(pool: Pool, known: KnownPrices | None, region: str) -> Iterator[_PricePart]:
    row = pool.accelerator
    if known is not None:
        found = known.of(row.name, pool.machine)
        named = pool.machine if row.family == "cpu" else f"{row.name} with {pool.machine}"
        yield named, found.rates(region, known.date) if found else (), pool.replicas
        return
    if row.family == "cpu":
        yield pool.machine, machines.RATES.get(pool.machine, ()), pool.replicas
        return
    yield row.name, row.rates, pool.replicas
    if not row.includes_machine:
        yield f"the machine {pool.machine}", machines.RATES.get(pool.machine, ()), pool.replicas


def by_region(rented: Rental) -> list[Price]:
    """Return the price in every region that a job may use, by read prices: the cheapest first, unknown ones last."""
    if rented.known is None:
        return []
    found = dict.fromkeys(regions.KNOWN)
    for pool in rented.pools:
        machine = rented.known.of(pool.accelerator.name, pool.machine)
        usable = allowed(pool.accelerator, machine.absent if machine else ())
        found = {region: None for region in found if region in usable}
    prices = [price(rented, region) for region in found]
    return sorted(prices, key=lambda each: (each.own is None, each.at_least, each.region))


def _rate(rates: tuple[Rate, ...], kind: Provisioning, region: str) -> Rate | None:
    return next((rate for rate in rates if rate.kind == kind and region in rate.regions), None)


def _sum(parts: list[_PricePart], kind: Provisioning, region: str) -> float | None:
    total = 0.0
    for _, rates, times in parts:
        rate = _rate(rates, kind, region)
        if rate is None:
            return None
        total += rate.on_vertex * times
    return total


def quotas(rented: Rental) -> list[Quota]:
    """Return the quotas that a job counts against, in every region that it may run in."""
    preemptible = rented.provisioning in ("spot", "flex")
    totals: dict[tuple[str | None, str], int | None] = {}
    for pool in rented.pools:
        for name, what, each in _quotas_of_machine(pool, rented.disk_gb):
            metric = _metric(name, preemptible=preemptible)
            before = totals.get((metric, what), 0)
            totals[metric, what] = None if each is None or before is None else before + each * pool.replicas
    return [Quota(metric=metric, amount=amount, what=what) for (metric, what), amount in totals.items()]


def _quotas_of_machine(pool: Pool, disk_gb: int) -> Iterator[tuple[str | None, str, int | None]]:
    """Yield the name of each quota of one machine, what it counts, and how many."""
    row = pool.accelerator
    if row.family != "cpu":
        # It is not documented whether a TPU's quota counts cores or chips.
        yield row.quota, row.title, row.count if row.family == "gpu" else None
    family = pool.machine.partition("-")[0]
    if family in _CPU_QUOTAS:
        yield _CPU_QUOTAS[family], f"CPUs of {family} machines", machines.vcpus(pool.machine)
    yield "pd_ssd", "GB of boot disks", disk_gb


def _metric(name: str | None, *, preemptible: bool) -> str | None:
    if name is None:
        return None
    if not preemptible or name == "pd_ssd":
        return f"{_METRIC}{name}"
    # Spot and flex-start have quotas of their own; their names are unknown for TPUs and for n2 and c2 machines.
    return None if name.startswith(("tpu", "n2", "c2")) else f"{_METRIC}preemptible_{name}"


def lines(rentals: Sequence[Rental], *, billed: bool = True) -> list[tuple[str, str]]:
    """Return price, cap and quotas as (label, text), for the places of a run; only the quotas where nothing is billed."""
    needed = [("quota", _quota(quota)) for rented in rentals for quota in quotas(rented)]
    return [*(_prices(rentals) if billed else ()), *dict.fromkeys(needed)]


def _prices(rentals: Sequence[Rental]) -> list[tuple[str, str]]:
    found = [price(rented) for rented in rentals]
    texts = ["; ".join(_hourly(each, rented.provisioning)) for each, rented in zip(found, rentals, strict=True)]
    shown = [(f"price {number}" if texts[1:] else "price", text) for number, text in enumerate(texts, 1)]
    return [*shown, ("cap", _cap(found, limited=rentals[0].timeout_s is not None))]


def region_lines(rentals: Sequence[Rental], shown: int | None = None) -> list[tuple[str, str]]:
    """Return what each region would cost, for every kind of machines that a run may rent; `shown` limits the regions."""
    found = [("regions", _regions(each, shown)) for each in rentals if each.known is not None]
    return list(dict.fromkeys(found))


def _regions(rented: Rental, shown: int | None) -> str:
    prices = by_region(rented)
    known = [f"{each.region} {amount(each)}" for each in prices if each.own is not None]
    unknown = [each.region for each in prices if each.own is None]
    how = f"USD an hour {PROVISIONING_WORDS[rented.provisioning]}"
    parts = [f"{and_more(known, len(known) if shown is None else shown)} {how}"] if known else []
    if unknown:
        parts.append(f"price unknown in {and_more(unknown, _SHOWN if shown is None else 1)}")
    return "; ".join(parts) or "none is left"


def amount(price: Price) -> str:
    """Return the price of an hour in US dollars, an estimate with "~": "~1.38"."""
    if price.own is None:
        return "unknown"
    digits = 4 if price.own < _CENT else 2
    return f"{'' if price.exact else '~'}{price.own:.{digits}f}"


def _cap(prices: Sequence[Price], *, limited: bool) -> str:
    """Return the most that a run can cost, whatever the places of its jobs."""
    what = "the timeout, for all jobs together" if limited else "Vertex AI's default timeout of each job"
    unknown = [each.region for each in prices if each.cap is None]
    dearest = max(prices, key=lambda each: each.at_least)
    where = f" in {dearest.region}" if len(prices) > 1 else ""
    at_most = f"{money(dearest.cap)} at most" if not unknown else "unknown"
    return f"{at_most}, for {duration(dearest.timeout_s)}{where if not unknown else ''}: {what}"


def _hourly(price: Price, provisioning: Provisioning) -> Iterator[str]:
    amount = "unknown" if price.own is None else f"{money(price.own)} an hour"
    yield f"{amount} {PROVISIONING_WORDS[provisioning]} in {price.region}"
    if provisioning != "spot" and price.spot is not None:
        yield f"{money(price.spot)} on spot"
    if provisioning != "standard" and price.per_hour is not None:
        yield f"{money(price.per_hour)} on demand"
    if price.missing:
        yield f"no source gives the price of {joined(price.missing, 'and')}"
        if price.at_least:
            yield f"the rest is {money(price.at_least)} an hour"
    if price.source:
        estimate = "" if price.exact else "an estimate: "
        yield f"{estimate}{price.source}, {price.date}; boot disks are extra"


def _quota(quota: Quota) -> str:
    amount = "" if quota.amount is None else f": {quota.amount}"
    return f"{quota.metric or 'unknown name'}{amount} ({quota.what})"
