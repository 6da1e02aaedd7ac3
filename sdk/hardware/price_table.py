"""Prices of whole machines, put together from a catalog's items and the shapes of machine types. Pure.

Standard is Vertex AI's own SKU for each part of a machine, else Compute Engine's price with the fee as an estimate. Spot is
Compute Engine's spot price and Vertex AI's fee, both from SKUs. A machine with an unknown part has no price.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from . import FEE, Accelerator, PriceSource, Provisioning, Rate, accelerators, machines, regions
from .catalog import Units

OLD_DAYS = 90
_SOURCE = "Cloud Billing catalog"
_ESTIMATE = f"{_SOURCE}, Compute Engine x {FEE:g}"
_SPOT = f"{_SOURCE}, spot and Vertex AI's fee"
# The part of a machine type's name that names its SKUs, where that is not its first word.
_FAMILIES = {"a3-megagpu": "a3plus", "a3-ultragpu": "a3ultra"}
_CORES_OF_A_DEVICE = 8


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What a machine type consists of."""

    vcpus: int
    ram_gib: float
    gpus: int = 0
    ssd_gib: int = 0  # local SSDs that belong to it


@dataclass(frozen=True, kw_only=True)
class MachinePrices:
    """An hour of one machine with its accelerator, in US dollars by region, without its boot disk."""

    accelerator: str
    machine: str
    standard: Mapping[str, float]
    spot: Mapping[str, float]
    estimated: tuple[str, ...] = ()  # regions whose standard price is an estimate
    absent: tuple[str, ...] = ()  # regions where Compute Engine or Cloud TPU lists no such machine

    def rates(self, region: str, date: str) -> tuple[Rate, ...]:
        """Return what is known in a region, with the fee. Google changes spot prices: they are estimates."""
        exact = region not in self.estimated
        standard = PriceSource(name=_SOURCE if exact else _ESTIMATE, date=date, fee=1.0, exact=exact)
        spot = PriceSource(name=_SPOT, date=date, fee=1.0, exact=False)
        found: tuple[tuple[Provisioning, Mapping[str, float], PriceSource], ...] = (
            ("standard", self.standard, standard),
            ("spot", self.spot, spot),
        )
        return tuple(
            Rate(usd=prices[region], kind=kind, regions=(region,), source=source)
            for kind, prices, source in found
            if region in prices
        )


@dataclass(frozen=True, kw_only=True)
class KnownPrices:
    """The prices of a table for the machines of one plan. What they do not have is unknown."""

    date: str
    age_days: int
    machines: tuple[MachinePrices, ...]

    @property
    def is_old(self) -> bool:
        return self.age_days > OLD_DAYS

    def of(self, accelerator: str, machine: str) -> MachinePrices | None:
        return next(
            (each for each in self.machines if (each.accelerator, each.machine) == (accelerator, machine)), None
        )


@dataclass(frozen=True, kw_only=True)
class PriceTable:
    """What `podlift accelerators --refresh` read.

    Args:
        date: the day on which it was read.
        units: prices of cores, memory and accelerators.
        shapes: machine types.
        offered: regions with a machine type, a type of GPU ("gpu:nvidia-l4") or a generation of TPUs ("tpu:v5e").
        surveyed: regions whose zones all have answered, by "machines", "gpus" or "tpus". Others rule nothing out.
        emulator: the emulator that made it up; "" for Google's catalog.
        doubtful: SKUs that matched together, in words.
    """

    date: str
    units: Units
    shapes: dict[str, Shape]
    offered: dict[str, tuple[str, ...]]
    surveyed: dict[str, tuple[str, ...]]
    emulator: str = ""
    doubtful: tuple[str, ...] = field(default=())

    def known(self, wanted: Sequence[tuple[str, str]], age_days: int) -> KnownPrices:
        """Return the prices of machines, given by their accelerator and machine type."""
        made = tuple(self.machine(accelerators.row(name), machine) for name, machine in dict.fromkeys(wanted))
        return KnownPrices(date=self.date, age_days=age_days, machines=made)

    def machine(self, row: Accelerator, machine: str) -> MachinePrices:
        standard, spot, estimated = dict[str, float](), dict[str, float](), list[str]()
        absent = self.absent(row, machine)
        for region in allowed(row, absent):
            usd, exact = self._standard(row, machine, region)
            if usd is not None:
                standard[region] = usd
                estimated += [] if exact else [region]
            usd = self._spot(row, machine, region)
            if usd is not None:
                spot[region] = usd
        return MachinePrices(
            accelerator=row.name,
            machine=machine,
            standard=standard,
            spot=spot,
            estimated=tuple(estimated),
            absent=tuple(absent),
        )

    def absent(self, row: Accelerator, machine: str) -> list[str]:
        """Return the regions of Vertex AI where no zone lists the machine: a table of regions only becomes narrower by it."""
        needed = [("tpus", f"tpu:{_generation(row)}")] if row.family == "tpu" else [("machines", machine)]
        if row.family == "gpu" and not row.includes_machine and machine in machines.N1 and row.type:
            needed.append(("gpus", f"gpu:{row.type.lower().replace('_', '-')}"))
        gone = set[str]()
        for kind, name in needed:
            # A name that no region lists has another spelling there.
            if name in self.offered:
                gone |= set(self.surveyed.get(kind, ())) - set(self.offered[name])
        return sorted(gone & set(regions.KNOWN))

    def _standard(self, row: Accelerator, machine: str, region: str) -> tuple[float | None, bool]:
        total, exact = 0.0, True
        for item, amount in self._parts(row, machine):
            own, engine = self._unit("whole", item, region), self._unit("standard", item, region)
            if own is None and engine is None:
                return None, False
            exact = exact and own is not None
            total += amount * (own if own is not None else (engine or 0.0) * FEE)
        return _valid(total), exact

    def _spot(self, row: Accelerator, machine: str, region: str) -> float | None:
        total = 0.0
        for item, amount in self._parts(row, machine):
            engine, fee = self._unit("spot", item, region), self._unit("fee", item, region)
            if engine is None or fee is None:
                return None
            total += amount * (engine + fee)
        ssd_gib = self.shapes[machine].ssd_gib if machine in self.shapes else 0
        ssd = self._unit("spot", "ssd", region) if ssd_gib else 0.0
        return None if ssd is None else _valid(total + ssd_gib * ssd)

    def _parts(self, row: Accelerator, machine: str) -> Iterator[tuple[str, float]]:
        """Yield the items of a machine with their amounts; an item without a price if it is not known what they are."""
        if row.family == "tpu":
            item = f"tpu:{_generation(row)}"
            # Pods of v2 and v3 have other prices.
            known = row.hosts == 1 and (row.count is None or row.count == _CORES_OF_A_DEVICE)
            yield (item, float(row.chips if row.count is None else 1)) if known else ("", 1.0)
            return
        shape, first = self.shapes.get(machine), machine.partition("-")[0]
        family = _FAMILIES.get(machine.rpartition("-")[0], first)
        # A machine type that brings other GPUs than the row is not the machine that is meant.
        if shape is None or (shape.gpus and shape.gpus != (row.count or 0)):
            yield "", 1.0
            return
        yield f"core:{family}", float(shape.vcpus)
        yield f"ram:{family}", shape.ram_gib
        if row.family == "gpu":
            yield f"gpu:{row.type}", float(row.count or 0)

    def _unit(self, charge: str, item: str, region: str) -> float | None:
        return _valid(self.units.get(charge, {}).get(item, {}).get(region))


def allowed(row: Accelerator, absent: Sequence[str]) -> list[str]:
    """Return the regions where a job may use a row: those of Vertex AI's table, but no absent one."""
    return [region for region in row.regions if region not in absent]


def _generation(row: Accelerator) -> str:
    return row.name.partition("-")[0]


def _valid(usd: float | None) -> float | None:
    """Return a price; None for what is none, whatever a damaged file says."""
    return usd if usd is not None and 0 < usd < math.inf else None
