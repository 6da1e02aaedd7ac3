"""The accelerators, as one table; its rows come from one file for each family.

Adding hardware is adding a row. Nothing else in the package may branch on an accelerator's name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ..errors import InputError, nearest
from ..text import joined
from . import Accelerator, gpus, machines, regions, tpus

__all__ = ["ROWS", "Accelerator", "Pool", "in_step", "lookup", "names", "per_task", "pools", "replicas", "row"]

_CPU = Accelerator(
    name="cpu",
    family="cpu",
    backends=("local", "vertex", "ray", "kubernetes"),
    title="no accelerator",
    machine=machines.DEFAULT,
    vcpus=machines.vcpus(machines.DEFAULT),
    regions=regions.TRAINING,
    includes_machine=True,
    rates=machines.RATES[machines.DEFAULT],
    runs_tensorflow=True,
    quota="cpus",
    notes="vertex_machine accepts any machine type that is available for training",
)
ROWS: tuple[Accelerator, ...] = (_CPU, *gpus.ROWS, *tpus.ROWS)
_TABLE = {row.name: row for row in ROWS}
_ALIASES = {alias: row.name for row in ROWS for alias in row.aliases}
# Vertex AI's own names: NVIDIA_L4, NVIDIA_TESLA_T4.
_TYPES = {row.type.lower().replace("_", "-"): row.name.partition(":")[0] for row in gpus.ROWS if row.type}

# CUDA_VISIBLE_DEVICES where logical CPU devices stand in for GPUs. CUDA reads it as -1, which programs set themselves.
HIDDEN_GPUS = "-1,-1"
# Where CPUs stand in: `channels_first` needs oneDNN, which TensorFlow turns on by itself on some processors only.
STAND_IN_ENV = {"TF_ENABLE_ONEDNN_OPTS": "1"}

_TIMES = re.compile(r"([a-z0-9-]+)x(\d+)")


def names(backend: str | None = None) -> list[str]:
    """Return the names of all available rows, of one backend or of any."""
    return [row.name for row in ROWS if not row.refused and (backend is None or backend in row.backends)]


def row(name: str) -> Accelerator:
    return _TABLE[name]


def per_task(row: Accelerator) -> int:
    """Return the number of replicas in one task: one for each GPU or TPU core, or one on CPUs."""
    # `count` is the number of cores in generations of TPUs with two on a chip.
    return row.count or row.chips or 1


def replicas(row: Accelerator, environ: Mapping[str, str]) -> int:
    """Return how many logical CPU devices stand in for an accelerator: one for each replica, or fewer by a variable."""
    most, variable = per_task(row), f"PODLIFT_{row.family.upper()}_REPLICAS"
    text = environ.get(variable, "").strip()
    if not text:
        return most
    if text.isdecimal() and 1 <= int(text) <= most:
        return int(text)
    near = min(int(text), most) or 1 if text.isdecimal() else most
    raise InputError(
        f"{variable} is the number of replicas that stand in for {row.name}: 1 to {most}. Received: {text!r}. "
        f"Nearest: {variable}={near}, or unset it for {most}."
    )


def in_step(row: Accelerator, tasks: int) -> int:
    """Return the number of replicas with which `ctx.strategy` trains in this many tasks, without parameter servers."""
    return per_task(row) * (1 if row.family == "tpu" else tasks)


def lookup(name: str) -> Accelerator:
    """Return the row for a name in any spelling: "l4:4", "A100", "tpu-v5e-4", "v5litepod-4", "NVIDIA_TESLA_T4:2", "l4x4"."""
    text = _normalized(name)
    hardware = _TABLE.get(_ALIASES.get(text, text))
    if hardware is None:
        raise InputError(f"Unknown accelerator. Received: {name!r}. {_near(text)}")
    return hardware


def _normalized(name: str) -> str:
    text = name.strip().lower().replace("_", "-")
    times = _TIMES.fullmatch(text)
    base, colon, count = (times[1], ":", times[2]) if times and times[1] in _TABLE else text.partition(":")
    base = _TYPES.get(base, base.removeprefix("nvidia-"))
    return f"{base}{colon}{count}"


def _near(text: str) -> str:
    base, _, count = text.partition(":")
    absent, generation = {**gpus.ABSENT, **tpus.ABSENT}, base.removeprefix("tpu-").partition("-")[0]
    if generation in absent:
        return f"{generation} is not offered for training. Nearest: {absent[generation]!r}."
    counts = {row.count: row.name for row in gpus.ROWS if row.name.partition(":")[0] == base and row.count}
    if counts:
        number = int(count[:9]) if count.isdecimal() else 1
        # Of two equally near counts, prefer the larger: a job that is too small is worse.
        best = min(counts, key=lambda has: (abs(has - number), -has))
        sizes = joined([str(count) for count in sorted(counts)], "or")
        return f"{base} comes in machines of {sizes}. Nearest: {counts[best]!r}."
    return nearest(text, names())


@dataclass(frozen=True, kw_only=True)
class Pool:
    """The machines of one role: a worker pool of Vertex AI."""

    role: Literal["chief", "worker", "ps", "evaluator"]
    index: int  # its position; an empty pool keeps its index
    replicas: int
    machine: str
    accelerator: Accelerator  # in each machine


def pools(
    accelerator: str = "cpu", workers: int = 1, ps: int = 0, evaluator: bool = False, *, machine: str | None = None
) -> tuple[Pool, ...]:
    """Return the non-empty pools of a job; `machine` replaces the default machine of the accelerator.

    The evaluator has the hardware of the workers. Parameter servers have the default machine without an accelerator; in a job
    without accelerators, they have the machine of the workers.
    """
    hardware = lookup(accelerator)
    machine = machine or hardware.machine or machines.DEFAULT
    plain = hardware.family == "cpu"
    every = (
        Pool(role="chief", index=0, replicas=1, machine=machine, accelerator=hardware),
        Pool(role="worker", index=1, replicas=workers - 1, machine=machine, accelerator=hardware),
        Pool(role="ps", index=2, replicas=ps, machine=machine if plain else machines.DEFAULT, accelerator=_CPU),
        Pool(role="evaluator", index=3, replicas=int(evaluator), machine=machine, accelerator=hardware),
    )
    return tuple(pool for pool in every if pool.replicas)
