"""The hourly price of machines, the maximum cost of a run on Vertex AI, and the quotas that it needs. Pure.

Prices come from this package's rows, or from a table that was read, never from both. A price is known only if each of its
parts is known. Otherwise the known parts are a lower bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from ..text import and_more, duration, joined, money
from . import FEE, PriceSource, Provisioning, Rate, machines, regions
from .accelerators import Pool
from .catalog import PriceTable

# Vertex AI's limit for a job without a timeout.
DEFAULT_TIMEOUT_S = 7 * 86400.0
REFRESH = "podlift accelerators --refresh"
_MAX_REGIONS, _CENT = 4, 0.01
_CATALOG = "Cloud Billing catalog"
# The part of a machine type's name that names its SKUs, where that is not its first word.
_FAMILIES = {"a3-megagpu": "a3plus", "a3-ultragpu": "a3ultra"}
_CORES_OF_A_DEVICE = 8
_METRIC = "aiplatform.googleapis.com/custom_model_training_"
# The CPU quota of each machine family; the CPUs of a2 and a3 machines are not limited.
_CPU_QUOTAS = {"n1": "cpus", "e2": "cpus", "n2": "n2_cpus", "c2": "c2_cpus"}
PROVISIONING_WORDS = {"standard": "on demand", "spot": "on spot", "flex": "as flex-start"}

# Reading a bucket from another region, in US dollars for one GiB, from the bucket's area. Source: the matrix of "Data transfer
# within Google Cloud" on cloud.google.com/storage/pricing, in two stored copies of that page that agree.
READING = PriceSource(name="price page of Cloud Storage", date="2026", fee=1.0, exact=True)
_AREAS = {
    "us": "America", "northamerica": "America", "europe": "Europe", "asia": "Asia", "australia": "Oceania", "me": "Middle East",
    "southamerica": "Latin America", "africa": "Africa",
}  # fmt: skip
_INDONESIA = "asia-southeast2"
_TO = ("America", "Europe", "Asia", "Indonesia", "Oceania", "Middle East", "Latin America", "Africa")
_FROM: dict[str, tuple[float | None, ...]] = {
    "America": (0.02, 0.05, 0.08, 0.10, 0.10, 0.11, 0.14, 0.11),
    "Europe": (0.05, 0.02, 0.08, 0.10, 0.10, 0.11, 0.14, 0.11),
    "Asia": (0.08, 0.08, 0.08, 0.10, 0.10, 0.11, 0.14, 0.11),
    "Indonesia": (0.10, 0.10, 0.10, None, 0.08, 0.11, 0.14, 0.14),
    "Oceania": (0.10, 0.10, 0.10, 0.08, 0.08, 0.11, 0.14, 0.14),
    "Middle East": (0.11, 0.11, 0.11, 0.11, 0.11, 0.08, 0.14, 0.11),
    "Latin America": (0.14, 0.14, 0.14, 0.14, 0.14, 0.14, 0.14, 0.14),
    "Africa": (0.11, 0.11, 0.11, 0.14, 0.14, 0.11, 0.14, None),
}


@dataclass(frozen=True, kw_only=True)
class Rental:
    """The machines that a job rents, and for how long."""

    pools: tuple[Pool, ...]
    regions: tuple[str, ...] = (regions.DEFAULT,)  # where it may run; the first is preferred
    provisioning: Provisioning = "standard"
    disk_gb: int = 100  # of each machine
    timeout_s: float | None = None
    table: PriceTable | None = None  # read prices, which replace all of this package's; None for this package's
    unpriced: tuple[str, ...] = ()  # other rented things, without a known price


# The price of a training container's requests to the bucket (docs/explanation/decisions/containers.md), shown if it matters.
REQUESTS_USD_HOUR, _SMALL_SHARE = 0.005, 0.01


@dataclass(frozen=True, kw_only=True)
class Price:
    """The price of all machines of a job together, in US dollars, without their boot disks."""

    region: str
    per_hour: float | None  # on demand; None if a part of it is unknown
    spot: float | None  # one hour on spot machines; likewise
    own: float | None  # one hour with the job's own provisioning; likewise
    at_least: float  # the known parts of `own`
    timeout_s: float
    missing: tuple[str, ...]  # the unknown parts of `own`
    exact: bool  # False for an estimate
    source: str
    date: str  # of the oldest source

    @property
    def known_cap(self) -> float:
        """The most that the known parts can cost in all of `timeout_s`."""
        return self.at_least * self.timeout_s / 3600

    @property
    def cap(self) -> float | None:
        """The most that the job can cost; None if a part of it is unknown."""
        return None if self.own is None else self.known_cap


@dataclass(frozen=True, kw_only=True)
class Quota:
    """A limit of the project that a job counts against; `metric` and `amount` are None if unknown."""

    metric: str | None
    amount: int | None
    what: str


def price(rented: Rental, region: str | None = None) -> Price:
    """Return the price of a job in a region, by default its first one."""
    region = region or rented.regions[0]
    parts = [part for pool in rented.pools for part in _parts(pool, rented.table, region)]
    own = [(what, _rate(rates, rented.provisioning, region), times) for what, rates, times in parts]
    priced = [rate for _, rate, _ in own if rate]
    missing = tuple(dict.fromkeys([*(what for what, rate, _ in own if rate is None), *rented.unpriced]))
    at_least = sum(rate.on_vertex * times for _, rate, times in own if rate)
    return Price(
        region=region,
        per_hour=None if rented.unpriced else _hour(parts, "standard", region),
        spot=None if rented.unpriced else _hour(parts, "spot", region),
        own=None if missing else at_least,
        at_least=at_least,
        timeout_s=rented.timeout_s or DEFAULT_TIMEOUT_S,
        missing=missing,
        exact=all(rate.source.exact for rate in priced),
        source=", ".join(dict.fromkeys(rate.source.name for rate in priced)),
        date=min((rate.source.date for rate in priced), default=""),
    )


_PricePart = tuple[str, tuple[Rate, ...], int]


def _parts(pool: Pool, table: PriceTable | None, region: str) -> Iterator[_PricePart]:
    row = pool.accelerator
    if table is not None:
        named = pool.machine if row.family == "cpu" else f"{row.name} with {pool.machine}"
        yield named, _read_rates(table, pool, region), pool.replicas
        return
    if row.family == "cpu":
        yield pool.machine, machines.RATES.get(pool.machine, ()), pool.replicas
        return
    yield row.name, row.rates, pool.replicas
    if not row.includes_machine:
        yield f"the machine {pool.machine}", machines.RATES.get(pool.machine, ()), pool.replicas


def _read_rates(table: PriceTable, pool: Pool, region: str) -> tuple[Rate, ...]:
    """Return the price of one machine by a read table, with the fee.

    On demand is Vertex AI's own SKU for each part, else Compute Engine's price with the fee as an estimate. Spot is Compute
    Engine's spot price and Vertex AI's fee. Google changes spot prices: they are estimates.
    """
    standard, spot, exact = list[float | None](), list[float | None](), True
    for item, amount in _items(pool):
        whole, engine = table.usd("whole", item, region), table.usd("standard", item, region)
        cheap, fee = table.usd("spot", item, region), table.usd("fee", item, region)
        if item == "ssd":
            # It is part of the price on demand, and has no fee on spot.
            spot.append(cheap and cheap * amount)
            continue
        exact = exact and whole is not None
        standard.append(whole * amount if whole else engine and engine * FEE * amount)
        spot.append((cheap + fee) * amount if cheap and fee else None)
    name = _CATALOG if exact else f"{_CATALOG}, Compute Engine x {FEE:g}"
    source = PriceSource(name=name, date=table.date, fee=1.0, exact=exact)
    on_spot = replace(source, name=f"{_CATALOG}, spot and Vertex AI's fee", exact=False)
    prices: tuple[tuple[Provisioning, float | None, PriceSource], ...] = (
        ("standard", _sum(standard), source),
        ("spot", _sum(spot), on_spot),
    )
    return tuple(Rate(usd=usd, kind=kind, regions=(region,), source=by) for kind, usd, by in prices if usd)


def _items(pool: Pool) -> tuple[tuple[str, float], ...]:
    """Return the catalog's items of one machine with their amounts; none if the items are unknown."""
    row, shape = pool.accelerator, machines.shape(pool.machine)
    if row.family == "tpu":
        # Pods of v2 and v3 have other prices.
        is_known = row.hosts == 1 and row.count in (None, _CORES_OF_A_DEVICE)
        item = f"tpu:{row.name.partition('-')[0]}"
        return ((item, float(row.chips if row.count is None else 1)),) if is_known else ()
    # A machine type that brings other GPUs than the row is not the machine that is meant.
    if shape is None or pool.machine not in (row.machines or machines.LISTED):
        return ()
    family = _FAMILIES.get(pool.machine.rpartition("-")[0], pool.machine.partition("-")[0])
    gpus = ((f"gpu:{row.type}", float(row.count or 0)),) if row.family == "gpu" else ()
    ssds = (("ssd", float(shape.ssd_gib)),) if shape.ssd_gib else ()
    return ((f"core:{family}", float(shape.vcpus)), (f"ram:{family}", shape.ram_gib), *gpus, *ssds)


def narrowed(table: PriceTable, pools: Iterable[Pool], age_days: int) -> PriceTable:
    """Return a table's prices for machines, in the regions where training has them."""
    regions_of: dict[str, set[str]] = {}
    for pool in pools:
        for item, _ in _items(pool):
            regions_of.setdefault(item, set()).update(pool.accelerator.regions)
    units = {
        charge: {
            item: {region: usd for region, usd in prices.items() if region in regions_of[item]}
            for item, prices in items.items()
            if item in regions_of
        }
        for charge, items in table.units.items()
    }
    return replace(table, units=units, doubtful=(), age_days=age_days)


def by_price(rented: Rental, names: Iterable[str]) -> list[Price]:
    """Return the price in each of these regions: the cheapest first, unknown ones last."""
    return sorted((price(rented, name) for name in names), key=lambda cost: (cost.own is None, cost.own or 0.0))


def _rate(rates: tuple[Rate, ...], kind: Provisioning, region: str) -> Rate | None:
    return next((rate for rate in rates if rate.kind == kind and region in rate.regions), None)


def _hour(parts: list[_PricePart], kind: Provisioning, region: str) -> float | None:
    rates = [(_rate(rates, kind, region), times) for _, rates, times in parts]
    return _sum([rate.on_vertex * times if rate else None for rate, times in rates])


def _sum(parts: Sequence[float | None]) -> float | None:
    """Return a sum, None if it has no parts or an unknown one."""
    values = [part for part in parts if part is not None]
    return sum(values) if values and len(values) == len(parts) else None


def quotas(rented: Rental) -> list[Quota]:
    """Return the quotas that a job counts against, in every region that it may run in."""
    preemptible = rented.provisioning in ("spot", "flex")
    totals: dict[tuple[str | None, str], int | None] = {}
    for pool in rented.pools:
        for name, what, count in _quotas_of_machine(pool, rented.disk_gb):
            metric = _metric(name, preemptible=preemptible)
            before = totals.get((metric, what), 0)
            totals[metric, what] = None if count is None or before is None else before + count * pool.replicas
    return [Quota(metric=metric, amount=amount, what=what) for (metric, what), amount in totals.items()]


def _quotas_of_machine(pool: Pool, disk_gb: int) -> Iterator[tuple[str | None, str, int | None]]:
    """Yield each quota of one machine: its name, the resource that it counts, and the amount."""
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
    # Spot and flex-start have separate quotas; their names are unknown for TPUs and for n2 and c2 machines.
    return None if name.startswith(("tpu", "n2", "c2")) else f"{_METRIC}preemptible_{name}"


def lines(rentals: Sequence[Rental], *, billed: bool = True) -> list[tuple[str, str]]:
    """Return price, cap and quotas as (label, text), for the places of a run; only the quotas where nothing is billed."""
    needed = [("quota", _quota(quota)) for rented in rentals for quota in quotas(rented)]
    return [*(_prices(rentals) if billed else ()), *dict.fromkeys(needed)]


def _prices(rentals: Sequence[Rental]) -> list[tuple[str, str]]:
    prices = [price(rented) for rented in rentals]
    texts = ["; ".join(_hourly(cost, rented)) for cost, rented in zip(prices, rentals, strict=True)]
    price_lines = [(f"price {number}" if texts[1:] else "price", text) for number, text in enumerate(texts, 1)]
    return [*price_lines, ("cap", _cap(prices, limited=rentals[0].timeout_s is not None))]


def region_lines(rentals: Sequence[Rental]) -> list[tuple[str, str]]:
    """Return the price in each region, for every kind of machines that a run may rent."""
    lines = [("regions", _regions(rental)) for rental in rentals if rental.table is not None]
    return list(dict.fromkeys(lines))


def _regions(rented: Rental) -> str:
    usable = [name for name in regions.KNOWN if all(name in pool.accelerator.regions for pool in rented.pools)]
    prices = by_price(rented, usable)
    priced = [f"{cost.region} {amount(cost)}" for cost in prices if cost.own is not None]
    unknown = [cost.region for cost in prices if cost.own is None]
    how = f"USD an hour {PROVISIONING_WORDS[rented.provisioning]}"
    parts = [f"{', '.join(priced)} {how}"] if priced else []
    if unknown:
        parts.append(f"price unknown in {and_more(unknown, _MAX_REGIONS)}")
    return "; ".join(parts) or "none is left"


def amount(price: Price) -> str:
    """Return the price of an hour in US dollars, an estimate with "~", or its lower bound: "~1.38", "at least 37.50"."""
    if price.own is None:
        return f"at least {price.at_least:.2f}" if price.at_least else "unknown"
    digits = 4 if price.own < _CENT else 2
    return f"{'' if price.exact else '~'}{price.own:.{digits}f}"


def _cap(prices: Sequence[Price], *, limited: bool) -> str:
    """Return the most that a run can cost, whatever the places of its jobs."""
    what = "the timeout, for all jobs together" if limited else "Vertex AI's default timeout of each job"
    unknown = [cost.region for cost in prices if cost.cap is None]
    dearest = max(prices, key=lambda cost: cost.at_least)
    where = f" in {dearest.region}" if len(prices) > 1 else ""
    at_most = f"{money(dearest.cap)} at most"
    if unknown:
        at_most = f"unknown, at least {money(dearest.known_cap)}" if dearest.at_least else "unknown"
    return f"{at_most}, for {duration(dearest.timeout_s)}{where if not unknown else ''}: {what}"


def _hourly(price: Price, rented: Rental) -> Iterator[str]:
    provisioning = rented.provisioning
    least = "at least " if price.own is None else ""
    amount = f"{least}{money(price.at_least)} an hour" if price.own is not None or price.at_least else "unknown"
    yield f"{amount} {PROVISIONING_WORDS[provisioning]} in {price.region}"
    if provisioning != "spot" and price.spot is not None:
        yield f"{money(price.spot)} on spot"
    if provisioning != "standard" and price.per_hour is not None:
        yield f"{money(price.per_hour)} on demand"
    if price.missing:
        yield f"no source gives the price of {joined(price.missing, 'and')}"
    if price.source:
        estimate = "" if price.exact else "an estimate: "
        yield f"{estimate}{price.source}, {price.date}; boot disks are extra"
    requests = REQUESTS_USD_HOUR * sum(pool.replicas for pool in rented.pools)
    if price.own is not None and requests > price.own * _SMALL_SHARE:
        yield f"requests to the bucket are {money(requests)} an hour more"


def _quota(quota: Quota) -> str:
    amount = "" if quota.amount is None else f": {quota.amount}"
    return f"{quota.metric or 'unknown name'}{amount} ({quota.what})"


def reading(bucket: str, region: str) -> float | None:
    """Return US dollars for a GiB that a job in a region reads from a bucket in another one; None if no source tells."""
    if bucket == region:
        return 0.0
    row, area = _FROM.get(_area(bucket)), _area(region)
    return row[_TO.index(area)] if row is not None and area in _TO else None


def _area(region: str) -> str:
    return "Indonesia" if region == _INDONESIA else _AREAS.get(region.partition("-")[0], "")
