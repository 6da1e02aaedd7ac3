"""Checks of what `Vertex(raw=...)` changes in the worker pools. Vertex AI judges the rest of it."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

from ..hardware.accelerators import ROWS, pools
from ..spec.findings import Finding, error, warning
from .vertex_hardware import Json, hardware

MAX_POOLS = 4
# More digits than any number of machines.
_DIGITS = 9


def replicas(job: Json, target: Json) -> list[Finding]:
    """Pools that Vertex AI rejects: too many, several chiefs, several evaluators, a second replica of a TPU."""
    patched = dict(_patched(target))
    found = []
    if any(index >= MAX_POOLS for index in patched):
        said = f"A job has at most {MAX_POOLS} pools. Received: pool {max(patched)} in raw"
        kept = {index: pool for index, pool in patched.items() if index < MAX_POOLS}
        found.append(error(said, {"vertex.raw": _with_pools(target, kept)}))
    tpu = hardware(job).family == "tpu"
    for index, pool in patched.items():
        count = _number(pool.get("replicaCount"))
        if count is None or count <= 1:
            continue
        what = {0: "A job has one chief, in pool 0", 3: "A job has at most one evaluator, in pool 3"}.get(index)
        if what is None and tpu:
            what = "A job with TPUs has exactly one task"
        if what:
            fixed = {"vertex.raw": _without(target, index, "replicaCount")}
            found.append(error(f"{what}. Received: replicaCount {count} in raw", fixed))
    return found


def mixed(job: Json, target: Json) -> list[Finding]:
    """Accelerators of several kinds in one job, which must be in one zone."""
    own = {pool.index: pool.accelerator.type for pool in pools(job["resources"], target)}
    # Some TPUs are named by their machine type alone.
    own[0] = own[0] or (hardware(job).name if hardware(job).family == "tpu" else None)
    found = []
    for index, pool in _patched(target):
        kind = _kind(pool)
        others = sorted({name for place, name in own.items() if name and place != index and name != kind})
        if not kind or not others:
            continue
        fixed = {"vertex.raw": _without(target, index, "machineSpec")}
        beside = f"Received: {kind!r} in raw beside {', '.join(others)}"
        if "TPU" in kind or hardware(job).family == "tpu":
            found.append(error(f"A job with TPUs has one pool, without GPUs. {beside}", fixed))
        elif apart := _apart(kind, others, target):
            found.append(error(f"Accelerators of one job must be in one zone, but {apart}. {beside}", fixed))
        else:
            found.append(
                warning(f"Accelerators of one job must be in one zone; it is unknown where both are. {beside}")
            )
    return found


def _apart(kind: str, others: list[str], target: Json) -> str:
    """Return why no region of the target has all kinds, "" if one may have."""
    for name in (kind, *others):
        known = next((row.regions for row in ROWS if row.type == name and row.regions is not None), None)
        if known is not None and not set(known) & set(target.get("regions") or ()):
            return f"{name} is in {', '.join(known)} only"
    return ""


def _patched(target: Json) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield the pools that raw changes, with their index; Vertex AI rejects malformed ones."""
    spec = (target.get("raw") or {}).get("jobSpec")
    named = spec.get("workerPoolSpecs") if isinstance(spec, Mapping) else None
    if isinstance(named, list):
        named = {str(index): pool for index, pool in enumerate(named)}
    for index, pool in named.items() if isinstance(named, Mapping) else ():
        place = _number(index)
        if place is not None and isinstance(pool, Mapping):
            yield place, pool


def _number(value: Any) -> int | None:
    """Return a number from JSON, also if it is written as text; None for anything else."""
    text = "" if isinstance(value, bool) else str(value)
    return int(text[:_DIGITS]) if text.isdecimal() else None


def _kind(pool: Mapping[str, Any]) -> str:
    machine = pool.get("machineSpec")
    kind = machine.get("acceleratorType") if isinstance(machine, Mapping) else None
    return kind if isinstance(kind, str) else ""


def _with_pools(target: Json, kept: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    """Return raw with these pools only, in the form (list or object) that it has."""
    raw = copy.deepcopy(dict(target["raw"]))
    whole = isinstance(raw["jobSpec"]["workerPoolSpecs"], list)
    pools = {index: dict(pool) for index, pool in kept.items()}
    raw["jobSpec"]["workerPoolSpecs"] = (
        [pools[index] for index in sorted(pools)] if whole else {str(index): pool for index, pool in pools.items()}
    )
    return raw


def _without(target: Json, index: int, name: str) -> dict[str, Any]:
    kept = {
        place: {key: value for key, value in pool.items() if (place, key) != (index, name)}
        for place, pool in _patched(target)
    }
    return _with_pools(target, kept)
