"""What an earlier run of the same program has shown of its steps, and what its plan warns of for that reason."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from .. import ids
from ..checks.scaling import Network, Pace, dominating
from ..errors import CorruptRunError
from ..hardware import accelerators, network
from ..records.plans import read_plan
from ..records.recorder import metrics_of, read_events
from ..spec.code import PackedCode
from ..spec.findings import Facts, Finding
from ..spec.job import Job
from ..spec.layout import RootPaths, RunPaths
from ..spec.policies import Target
from ..storage import posix

# The newest runs that are asked: most have what is looked for.
_ASKED = 10


@dataclass(frozen=True)
class _MeasuredStep:
    """The first step of a run's last attempt."""

    time: float
    attempt: int
    gradient_bytes: int


def findings(
    job: Job, target: Target, facts: Facts, code: PackedCode, folders: Sequence[str], name: str
) -> list[Finding]:
    """Return a warning if communication would dominate, as far as an earlier run of this name in one of the roots tells."""
    connects = network_of(job, target, facts)
    if connects is None:
        return []
    return [*dominating(last(code, folders, name, facts), job.resources.workers, connects)]


def network_of(job: Job, target: Target, facts: Facts) -> Network | None:
    """Return what connects the workers of a job; None if it is not known, or if they exchange no gradients in this way."""
    resources = job.resources
    family = accelerators.lookup(resources.accelerator).family
    if resources.ps or target.real_gpus:
        return None
    rentals = target.rentals(resources, job.limits)
    if not rentals:
        return Network(per_core=resources.workers / facts.cpus)
    rates = [network.gbit(pool.machine) for pool in rentals[0].pools[:2]]
    known = [rate for rate in rates if rate is not None]
    return Network(gbit=min(known), grpc=family != "gpu") if len(known) == len(rates) else None


def last(code: PackedCode, folders: Sequence[str], name: str, facts: Facts) -> Pace | None:
    """Return the pace of the newest run of a program below some roots that has one."""
    roots = [RootPaths(folder) for folder in folders]
    found = [root.run(each) for root in roots for each in _listed(root.runs) if ids.name_of(each) == name]
    for paths in sorted(found, key=_submitted, reverse=True)[:_ASKED]:
        # A damaged run says nothing about its pace.
        with suppress(CorruptRunError, OSError, ValueError, TypeError, KeyError):
            seen = _first_step(paths)
            if seen is None:
                continue
            plan = read_plan(paths, paths.root)
            step_s = _step_s(paths, seen, plan.tasks) if _is_same(plan.code, code) else None
            if step_s is not None:
                return Pace(
                    run=plan.run_id,
                    gradient_bytes=seen.gradient_bytes,
                    step_s=step_s,
                    workers=plan.job.resources.workers,
                    network=network_of(plan.job, plan.target, facts),
                    accelerator=plan.job.resources.accelerator,
                )
    return None


def _listed(folder: str) -> list[str]:
    with suppress(OSError):
        return posix.list_names(folder)
    return []


def _submitted(paths: RunPaths) -> float:
    with suppress(OSError):
        return os.stat(paths.plan).st_mtime
    return 0.0


def _is_same(one: PackedCode, other: PackedCode) -> bool:
    return (one.project, one.program, one.function) == (other.project, other.program, other.function)


def _first_step(paths: RunPaths) -> _MeasuredStep | None:
    events = [event for event in read_events(paths, ("first_step",)) if event.data.get("gradient_bytes")]
    newest = max(events, key=lambda event: event.attempt, default=None)
    return None if newest is None else _MeasuredStep(newest.time, newest.attempt, int(newest.data["gradient_bytes"]))


def _step_s(paths: RunPaths, seen: _MeasuredStep, tasks: Sequence[str]) -> float | None:
    """Return the seconds per step of the attempt's first `fit`, validation included, by the metrics of its epochs."""
    at, steps = seen.time, 1
    for record in metrics_of(paths, seen.attempt, tasks[:1]):
        if record["step"] is None or record["step"] <= steps:
            break
        at, steps = record["time"], record["step"]
    return (at - seen.time) / (steps - 1) if steps > 1 and at > seen.time else None
