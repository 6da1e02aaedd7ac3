"""What can be asked for, as data: one file for each family of devices, each number with its source and date.

What no source says is None, and is printed as "unknown": a guess would be taken for a price or for a promise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Release = tuple[int, int]
Provisioning = Literal["standard", "spot", "flex"]

# The fee of Vertex AI on top of Compute Engine's list: exact for n1 machines, an estimate for everything else.
FEE = 1.15
_US = ("us-central1",)


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where a price comes from.

    Args:
        name: who says so.
        date: when it was read, as far as that is known.
        fee: what to multiply it by for Vertex AI.
        exact: False where that makes an estimate of it.
    """

    name: str
    date: str
    fee: float
    exact: bool


VERTEX = Source(name="price page of Vertex AI", date="2026-10", fee=1.0, exact=True)
ENGINE = Source(name="price list of Compute Engine x 1.15", date="2026-11-20", fee=FEE, exact=False)
ENGINE_A2 = Source(name="price list of Compute Engine x 1.15", date="2025-03", fee=FEE, exact=False)


@dataclass(frozen=True, kw_only=True)
class Rate:
    """What one hour costs.

    Args:
        usd: US dollars for one hour, as the source has them: without the fee.
        kind: for which provisioning.
        regions: where.
        source: who says so.
    """

    usd: float
    kind: Provisioning
    regions: tuple[str, ...]
    source: Source

    @property
    def on_vertex(self) -> float:
        """US dollars for one hour with the fee."""
        return self.usd * self.source.fee


def rates(
    standard: float | None,
    spot: float | None = None,
    *,
    times: int = 1,
    regions: tuple[str, ...] = _US,
    source: Source = ENGINE,
) -> tuple[Rate, ...]:
    """Return the rates of `times` units."""
    found: list[Rate] = []
    if standard is not None:
        found.append(Rate(usd=standard * times, kind="standard", regions=regions, source=source))
    if spot is not None:
        found.append(Rate(usd=spot * times, kind="spot", regions=regions, source=source))
    return tuple(found)


@dataclass(frozen=True, kw_only=True)
class Accelerator:
    """One thing that can be asked for: what is in one machine, and in how many machines it comes.

    Args:
        name: what users write.
        family: which kind of device TensorFlow sees.
        backends: where it can be had.
        aliases: other names for it.
        title: what it is, in words.
        machine: the machine type that is asked for by default; None where none is offered.
        machines: all machine types that may be asked for; empty for "cpu", where it is any of a family.
        type: the name in Vertex AI's AcceleratorType; None where the machine type says everything.
        count: how many of that type; None likewise.
        topology: of TPUs, how the chips are laid out; None where the count says it.
        chips: GPUs or TPU chips in all machines; 0 for "cpu".
        hosts: machines that one task spans.
        memory_gib: of one chip.
        flops: floating point operations a second of one chip, at most, in bfloat16; None where no source says.
        vcpus: of one machine of the default type.
        ram_gb: of one machine of the default type.
        regions: every region that has it; None where the list is not known.
        seen_in: regions that have it, although the list is not known.
        rates: what it costs.
        includes_machine: True if that is the price of the whole machine, else the machine's own price is added.
        runs_tensorflow: None where no source says.
        tensorflow: the oldest and the newest release that runs there; None where no source says.
        env: variables that TensorFlow needs there.
        script: of the machine itself, in bash: it sets what NCCL needs there; None where there is none.
        flex: whether it can be had as flex-start; None where no source says.
        quota: its part of the quota's name, behind `custom_model_training_`; None where no source says.
        reservation: True where machines must have been reserved before.
        refused: why no job gets it; "" where a job does.
        instead: the nearest row that a job gets.
        notes: what else has to be known.
    """

    name: str
    family: Literal["cpu", "gpu", "tpu"]
    backends: tuple[str, ...]
    aliases: tuple[str, ...] = ()
    title: str = ""
    machine: str | None = None
    machines: tuple[str, ...] = ()
    type: str | None = None
    count: int | None = None
    topology: str | None = None
    chips: int = 0
    hosts: int = 1
    memory_gib: int | None = None
    flops: float | None = None
    vcpus: int | None = None
    ram_gb: int | None = None
    regions: tuple[str, ...] | None = None
    seen_in: tuple[str, ...] = ()
    rates: tuple[Rate, ...] = ()
    includes_machine: bool = False
    runs_tensorflow: bool | None = None
    tensorflow: tuple[Release, Release] | None = None
    env: tuple[tuple[str, str], ...] = ()
    script: str | None = None
    flex: bool | None = False
    quota: str | None = None
    reservation: bool = False
    refused: str = ""
    instead: str = ""
    notes: str = ""
