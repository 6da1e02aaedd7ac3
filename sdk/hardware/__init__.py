"""The available hardware as data: one file for each family of devices, each number with its source and date.

Facts without a source are None and printed as "unknown": a guess would be taken for a price or a promise.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

Release = tuple[int, int]
Provisioning = Literal["standard", "spot", "flex"]

# The fee of Vertex AI on top of Compute Engine's list: exact for n1 machines, an estimate for everything else.
FEE = 1.15
_US = ("us-central1",)


@dataclass(frozen=True, kw_only=True)
class PriceSource:
    name: str
    date: str  # of its reading, if known
    fee: float  # factor to get Vertex AI's price
    exact: bool  # False if that factor makes it an estimate


# When most of the built-in prices were read; some are older, as their sources say.
PRICES_READ = "2026-11-20"
VERTEX = PriceSource(name="price page of Vertex AI", date="2026-10", fee=1.0, exact=True)
ENGINE = PriceSource(name="price list of Compute Engine x 1.15", date=PRICES_READ, fee=FEE, exact=False)
ENGINE_G4 = PriceSource(name="price list of Compute Engine x 1.15", date="2025-10", fee=FEE, exact=False)


@dataclass(frozen=True, kw_only=True)
class Rate:
    usd: float  # as in the source, without the fee
    kind: Provisioning
    regions: tuple[str, ...]
    source: PriceSource
    on_demand: float = 0.0  # of a spot price: the price on demand, from which the fee is computed; 0 if it is not known

    def times(self, count: float) -> Rate:
        return replace(self, usd=self.usd * count, on_demand=self.on_demand * count)

    @property
    def on_vertex(self) -> float:
        """US dollars for one hour, with the fee."""
        if self.on_demand:
            return self.usd + self.on_demand * (self.source.fee - 1.0)
        return self.usd * self.source.fee


def rates(
    standard: float | None,
    spot: float | None = None,
    *,
    times: int = 1,
    regions: tuple[str, ...] = _US,
    source: PriceSource = ENGINE,
    on_demand: float | None = None,
) -> tuple[Rate, ...]:
    """Return the rates of a price on demand and on spot; `on_demand` is for the fee of a spot price without the first one."""
    prices: dict[Provisioning, float | None] = {"standard": standard, "spot": spot}
    return tuple(
        Rate(
            usd=usd * times,
            kind=kind,
            regions=regions,
            source=source,
            on_demand=(standard or on_demand or 0.0) * times if kind == "spot" else 0.0,
        )
        for kind, usd in prices.items()
        if usd is not None
    )


@dataclass(frozen=True, kw_only=True)
class Accelerator:
    """One row of the table: the devices in a machine, and the number of machines. None means unknown."""

    name: str  # as users write it: "l4:2"
    family: Literal["cpu", "gpu", "tpu"]  # the device that TensorFlow sees
    backends: tuple[str, ...]
    aliases: tuple[str, ...] = ()
    title: str = ""
    machine: str | None = None  # the default machine type; None if none is offered
    machines: tuple[str, ...] = ()  # all machine types; empty for "cpu", which has families of them
    type: str | None = None  # Vertex AI's AcceleratorType; None if the machine type implies it
    count: int | None = None  # how many of that type; None likewise
    topology: str | None = None  # of TPUs; None if the count implies it
    chips: int = 0  # GPUs or TPU chips in all machines
    hosts: int = 1  # machines that one task spans
    memory_gib: int | None = None  # of one chip
    vcpus: int | None = None  # of one machine of the default type
    ram_gb: int | None = None  # of one machine of the default type
    regions: tuple[str, ...] = ()  # all regions where training has it
    rates: tuple[Rate, ...] = ()
    includes_machine: bool = False  # whether the rates include the machine's own price
    runs_tensorflow: bool | None = None
    tensorflow: tuple[Release, Release] | None = None  # the oldest and the newest release that exist for it
    documented: Release | None = None  # the newest one that Google documents for it; later ones were not tried
    own_tensorflow: str = ""  # why it needs an image with a TensorFlow that was not released
    env: tuple[tuple[str, str], ...] = ()  # variables that TensorFlow needs
    script: str | None = None  # a bash script on the machine that sets NCCL's variables
    flex: bool | None = False  # whether flex-start is offered
    quota: str | None = None  # the end of the quota's name, after `custom_model_training_`
    reservation: bool = False  # whether machines must be reserved first
    peering: bool = True  # whether its machines can be in a peered network
    refused: str = ""  # why it is not available
    instead: str = ""  # the nearest available row, if this one is refused or needs the user's own TensorFlow
    notes: str = ""
