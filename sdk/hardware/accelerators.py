"""The hardware that can be asked for, as one table; its rows are in `hardware`, one file for each family.

Adding hardware is adding a row. Nothing else in the package may branch on an accelerator's name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ..errors import InputError, nearest
from . import Accelerator, gpus, machines, regions, tpus

__all__ = ["ROWS", "Accelerator", "Pool", "lookup", "names", "pools", "replicas", "row"]

_CPU = Accelerator(
    name="cpu",
    family="cpu",
    backends=("local", "vertex"),
    title="no accelerator",
    machine=machines.DEFAULT,
    vcpus=machines.vcpus(machines.DEFAULT),
    seen_in=(regions.DEFAULT,),
    includes_machine=True,
    rates=machines.RATES[machines.DEFAULT],
    runs_tensorflow=True,
    quota="cpus",
    notes="vertex_machine accepts any machine type of a family that training may have",
)
ROWS: tuple[Accelerator, ...] = (_CPU, *gpus.ROWS, *tpus.ROWS)
_TABLE = {row.name: row for row in ROWS}
_ALIASES = {alias: row.name for row in ROWS for alias in row.aliases}
# As Vertex AI writes them: NVIDIA_L4, NVIDIA_TESLA_T4.
_TYPES = {row.type.lower().replace("_", "-"): row.name.partition(":")[0] for row in gpus.ROWS if row.type}


def names(backend: str | None = None) -> list[str]:
    """Return the names of all rows that a job gets, on one backend or on any."""
    return [row.name for row in ROWS if not row.refused and (backend is None or backend in row.backends)]


def row(name: str) -> Accelerator:
    """Return the row of that very name."""
    return _TABLE[name]


def replicas(tpu: Accelerator, wanted: str) -> int:
    """Return how many replicas stand for a TPU where there is none: all that it has, or fewer on request.

    Args:
        tpu: a row in one machine.
        wanted: the value of PODLIFT_TPU_REPLICAS; "" for all.

    Raises:
        InputError: it is no number, or the TPU has not as many.
    """
    # A row counts cores where the generation has two on a chip.
    cores = tpu.count or tpu.chips
    wanted = wanted.strip()
    if not wanted:
        return cores
    if wanted.isdecimal() and 1 <= int(wanted) <= cores:
        return int(wanted)
    near = min(int(wanted), cores) or 1 if wanted.isdecimal() else cores
    raise InputError(
        f"PODLIFT_TPU_REPLICAS is how many replicas stand for {tpu.name}: 1 to {cores}. Received: {wanted!r}. "
        f"Nearest: PODLIFT_TPU_REPLICAS={near}, or none for {cores}."
    )


def lookup(name: str) -> Accelerator:
    """Return the row that people mean by `name`: "l4:4", "A100", "tpu-v5e-4", "v5litepod-4", "NVIDIA_TESLA_T4:2".

    Raises:
        InputError: there is none; the sentence names the nearest.
    """
    text = _spelt(name)
    found = _TABLE.get(_ALIASES.get(text, text))
    if found is None:
        raise InputError(f"Unknown accelerator. Received: {name!r}. {_near(text)}")
    return found


def _spelt(name: str) -> str:
    base, colon, count = name.strip().lower().replace("_", "-").partition(":")
    base = _TYPES.get(base, base.removeprefix("nvidia-"))
    return f"{base}{colon}{count}"


def _near(text: str) -> str:
    base, _, count = text.partition(":")
    generation = base.removeprefix("tpu-").partition("-")[0]
    if generation in tpus.ABSENT:
        return f"No training machine has {generation}. Nearest: {tpus.ABSENT[generation]!r}."
    counts = {row.count: row.name for row in gpus.ROWS if row.name.partition(":")[0] == base and row.count}
    if counts:
        wanted = int(count[:9]) if count.isdecimal() else 1
        # The larger of two that are equally near: a job that was too small is worse than one that is too large.
        best = min(counts, key=lambda has: (abs(has - wanted), -has))
        return f"{base} comes in machines of {_either(list(counts))}. Nearest: {counts[best]!r}."
    return nearest(text, names())


def _either(counts: list[int]) -> str:
    words = [str(count) for count in sorted(counts)]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


@dataclass(frozen=True, kw_only=True)
class Pool:
    """Machines of one kind that a job asks for: a worker pool of Vertex AI.

    Args:
        role: what runs there.
        index: its place among the pools; an empty pool keeps it.
        replicas: how many tasks.
        machine: the machine type.
        accelerator: what is in each machine; the row "cpu" for none.
    """

    role: Literal["chief", "worker", "ps", "evaluator"]
    index: int
    replicas: int
    machine: str
    accelerator: Accelerator


def pools(resources: Mapping[str, Any], target: Mapping[str, Any]) -> tuple[Pool, ...]:
    """Return the pools that are not empty, of a Job's resources and a backend's value, both as JSON.

    The evaluator gets what the workers have. Parameter servers compute nothing: they get the default machine, without an
    accelerator, except in a job that has none at all.
    """
    hardware = lookup(resources.get("accelerator", "cpu"))
    machine = target.get("machine") or hardware.machine or machines.DEFAULT
    plain = hardware.family == "cpu"
    asked = (
        ("chief", 0, 1, machine, hardware),
        ("worker", 1, resources.get("workers", 1) - 1, machine, hardware),
        ("ps", 2, resources.get("ps", 0), machine if plain else machines.DEFAULT, _CPU),
        ("evaluator", 3, int(resources.get("evaluator", False)), machine, hardware),
    )
    return tuple(
        Pool(role=role, index=index, replicas=replicas, machine=machine, accelerator=accelerator)  # type: ignore[arg-type]
        for role, index, replicas, machine, accelerator in asked
        if replicas > 0
    )
