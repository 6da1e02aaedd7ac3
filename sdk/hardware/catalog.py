"""The table of prices that was read: SKUs of the Cloud Billing catalog that charge for training machines. Pure.

A SKU is matched by its whole description. Other kinds of sale (commitments, reservations, DWS, custom machines, sole
tenancy) then match nothing. An item with no SKU, with two of them, or with an unreadable one has no price.
The documented parts of the descriptions, and the assumptions: docs/explanation/decisions/prices.md.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timezone
from typing import Literal

Service = Literal["platform", "engine", "tpu"]
# The charge of a SKU: Vertex AI's whole price, its fee on machines of Compute Engine, or a price of Compute Engine.
Charge = Literal["whole", "fee", "standard", "spot"]
# US dollars by charge, item ("core:n1", "ram:n1", "gpu:NVIDIA_L4", "tpu:v5e", "ssd") and region.
Units = dict[str, dict[str, dict[str, float]]]

# The ids of Vertex AI, Compute Engine and Cloud TPU in the catalog (cloud.google.com/skus, as public code has them).
SERVICES: dict[str, Service] = {
    "C7E2-9256-1C43": "platform",
    "6F81-5844-456A": "engine",
    "E000-3F24-B8AA": "tpu",
}
# Prices of more days are old.
OLD_DAYS = 90
_HOURS_A_MONTH = 730
_GIB_PER_GB = 2**30 / 10**9
# By the kind of an item: how many hourly units of ours one unit of the catalog's price is for.
_PER_UNIT: dict[str, dict[str, float]] = {
    "core": {"h": 1.0},
    "ram": {"GiBy.h": 1.0, "GBy.h": _GIB_PER_GB},
    "gpu": {"h": 1.0},
    "tpu": {"h": 1.0},
    "ssd": {"GiBy.h": 1.0, "GiBy.mo": 1.0 / _HOURS_A_MONTH, "GBy.mo": _GIB_PER_GB / _HOURS_A_MONTH},
}
# Compute Engine's resource groups of each kind; Google does not document the groups of Vertex AI's SKUs.
_GROUPS = {
    "core": ("CPU", "N1Standard"),
    "ram": ("RAM", "N1Standard"),
    "gpu": ("GPU",),
    "tpu": ("TPU",),
    "ssd": ("LocalSSD",),
}
_USAGE = {"standard": "OnDemand", "spot": "Preemptible"}

_FAMILIES = ("n1", "n2", "n4", "e2", "a2", "a3", "a3plus", "a3ultra", "g2", "g4")
_GPUS = {
    "t4": "NVIDIA_TESLA_T4", "v100": "NVIDIA_TESLA_V100", "p4": "NVIDIA_TESLA_P4", "p100": "NVIDIA_TESLA_P100",
    "l4": "NVIDIA_L4", "a100": "NVIDIA_TESLA_A100", "a100 80gb": "NVIDIA_A100_80GB", "h100 80gb": "NVIDIA_H100_80GB",
    "h100 80gb mega": "NVIDIA_H100_MEGA_80GB", "h100 mega 80gb": "NVIDIA_H100_MEGA_80GB",
    "h100 80gb plus": "NVIDIA_H100_MEGA_80GB", "h200 141gb": "NVIDIA_H200_141GB", "rtx 6000 96gb": "NVIDIA_RTX_PRO_6000",
}  # fmt: skip
# The subject of a SKU, in lower case and without the words of `_NOISE`.
_ITEMS = {
    **{f"{family} instance {part}": f"{part}:{family}" for family in _FAMILIES for part in ("core", "ram")},
    **{f"compute optimized {part}": f"{part}:c2" for part in ("core", "ram")},
    **{f"memory-optimized instance {part}": f"{part}:m1" for part in ("core", "ram")},
    **{name: f"gpu:{kind}" for name, kind in _GPUS.items()},
    **{name: f"tpu:{name[-3:]}" for name in ("tpuv5e", "tpu v5e", "tpuv6e", "tpu v6e")},
}
_NOISE = re.compile(r"\b(nvidia|tesla|gpu|predefined)\b")
_SSD = "ssd backed local storage"
_IN = r" (?:running )?in \S.*"
_Patterns = tuple[tuple[re.Pattern[str], Charge], ...]
_VERTEX: _Patterns = (
    (re.compile(rf"vertex ai: training/pipelines management fee on (.+?){_IN}"), "fee"),
    (re.compile(rf"vertex ai: training/pipelines on (.+?){_IN}"), "whole"),
)
_ENGINE: _Patterns = (
    (re.compile(r"spot preemptible (.+?) running in \S.*"), "spot"),
    (re.compile(r"(.+?) attached to spot preemptible vms running in \S.*"), "spot"),
    (re.compile(rf"({_SSD}) attached to spot preemptible vms(?: running in \S.*)?"), "spot"),
    (re.compile(rf"({_SSD})(?: running in \S.*)?"), "standard"),
    (re.compile(r"(.+?) running in \S.*"), "standard"),
)
# A device of v2 and v3 has eight cores. Preemptible ones have the usage type OnDemand here.
_OLD_TPU = re.compile(r"(preemptible )?tpu-(v[23]) accelerator \S.*")


@dataclass(frozen=True, kw_only=True)
class PriceTable:
    """The prices that `podlift accelerators --refresh` read. A plan has the prices of its machines; a missing price is unknown.

    Args:
        date: the day on which they were read.
        units: prices of cores, memory, local SSDs and accelerators.
        doubtful: SKUs without a price, because several match or one cannot be read, in words.
        age_days: their age when a plan was made.
    """

    date: str
    units: Units
    doubtful: tuple[str, ...] = ()
    age_days: int = 0

    def __post_init__(self) -> None:
        every = [usd for items in self.units.values() for prices in items.values() for usd in prices.values()]
        if not all(0 < usd < math.inf for usd in every):
            raise ValueError("a price is not above zero")
        date.fromisoformat(self.date)

    def usd(self, charge: Charge, item: str, region: str) -> float | None:
        return self.units.get(charge, {}).get(item, {}).get(region)


def age_days(day: str, now: float) -> int:
    """Return how many days ago a day was, in UTC; below 0 if it is later than tomorrow."""
    days = (datetime.fromtimestamp(now, timezone.utc).date() - date.fromisoformat(day)).days
    # Clocks of two machines may differ around midnight.
    return 0 if days == -1 else days


def old(day: str, days: int) -> str:
    """Return why prices of a day may be old, "" if they are not."""
    if days < 0:
        return f"{day}, which is in the future: their age is unknown"
    return f"{day}, {days} days ago, more than {OLD_DAYS}" if days > OLD_DAYS else ""


@dataclass(frozen=True, kw_only=True)
class Sku:
    """The readable parts of one SKU."""

    id: str
    description: str
    group: str
    usage: str
    regions: tuple[str, ...]
    unit: str
    usd: float | None  # for one unit; None if it has no single price


def read_sku(data: object) -> Sku | None:
    """Return a SKU from its JSON; None without a description, which charges for nothing that is known."""
    if not isinstance(data, Mapping):
        return None
    description, regions, category = data.get("description"), data.get("serviceRegions"), data.get("category")
    if not isinstance(description, str):
        return None
    category = category if isinstance(category, Mapping) else {}
    unit, usd = _price(data.get("pricingInfo"))
    return Sku(
        id=str(data.get("skuId", "")),
        description=description,
        group=str(category.get("resourceGroup", "")),
        usage=str(category.get("usageType", "")),
        regions=tuple(region for region in (regions if isinstance(regions, list) else ()) if isinstance(region, str)),
        unit=unit,
        usd=usd,
    )


def _price(infos: object) -> tuple[str, float | None]:
    """Return the unit and the price of the newest entry of a timeline."""
    newest = infos[-1] if isinstance(infos, list) and infos else None
    expression = newest.get("pricingExpression") if isinstance(newest, Mapping) else None
    if not isinstance(expression, Mapping):
        return "", None
    tiers, unit = expression.get("tieredRates"), expression.get("usageUnit")
    listed = tiers if isinstance(tiers, list) else []
    prices = {_money(tier.get("unitPrice")) if isinstance(tier, Mapping) else None for tier in listed}
    # A price that depends on the amount is no price for an hour.
    return unit if isinstance(unit, str) else "", prices.pop() if len(prices) == 1 else None


def _money(data: object) -> float | None:
    """Return an amount of units and nanos in US dollars; None if it is not above zero."""
    if not isinstance(data, Mapping) or data.get("currencyCode") != "USD":
        return None
    units, nanos = data.get("units", "0"), data.get("nanos", 0)
    # An int64 is a string in JSON.
    whole = int(units) if isinstance(units, str) and re.fullmatch(r"\d{1,9}", units, re.ASCII) else units
    if type(whole) is not int or type(nanos) is not int or not 0 <= nanos < 10**9 or not 0 <= whole < 10**9:
        return None
    return whole + nanos / 10**9 or None


def match(service: Service, sku: Sku) -> tuple[Charge, str] | None:
    """Return the kind of a SKU's charge, and its item; None for all SKUs that are not about machines for training."""
    text = " ".join(sku.description.lower().split())
    if service == "tpu":
        device = _OLD_TPU.fullmatch(text)
        if device is None or not (_as_used(sku) or (device[1] and sku.usage == _USAGE["spot"])):
            return None
        return "spot" if device[1] else "standard", f"tpu:{device[2]}"
    for pattern, charge in _VERTEX if service == "platform" else _ENGINE:
        named = pattern.fullmatch(text)
        item = _item(named[1]) if named else None
        if item is not None and (_as_used(sku) if service == "platform" else _fits(sku, item, charge)):
            return charge, item
    return None


def _item(name: str) -> str | None:
    return "ssd" if name == _SSD else _ITEMS.get(" ".join(_NOISE.sub(" ", name).split()))


def _as_used(sku: Sku) -> bool:
    """Return whether a SKU charges for use, not for a commitment."""
    return sku.usage in (_USAGE["standard"], "")


def _fits(sku: Sku, item: str, charge: Charge) -> bool:
    return sku.group in _GROUPS[item.partition(":")[0]] and sku.usage == _USAGE[charge]


def units(skus: Iterable[tuple[Service, Sku]]) -> tuple[Units, list[str]]:
    """Return the price of each item that exactly one SKU charges in a region, and the others in words."""
    by_item: dict[tuple[str, str, str], dict[tuple[str, float | None], str]] = {}
    doubtful = list[str]()
    for service, sku in skus:
        matched = match(service, sku)
        if matched is None:
            continue
        charge, item = matched
        if not sku.regions:
            doubtful.append(f"{sku.description!r} names no region")
        per = _PER_UNIT[item.partition(":")[0]].get(sku.unit)
        usd = None if sku.usd is None or per is None else sku.usd * per
        for region in sku.regions:
            # A SKU that a page repeats is one.
            by_item.setdefault((charge, item, region), {})[sku.id, usd] = sku.description
    prices = Units()
    for (sort, item, region), candidates in by_item.items():
        usd = next(iter(candidates))[1]
        if len(candidates) == 1 and usd is not None:
            prices.setdefault(sort, {}).setdefault(item, {})[region] = usd
        else:
            why = "has no price that can be read" if len(candidates) == 1 else "match together"
            doubtful.append(f"{region}: {' and '.join(map(repr, sorted(set(candidates.values()))))} {why}")
    return prices, sorted(doubtful)
