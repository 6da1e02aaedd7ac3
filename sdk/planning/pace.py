"""What an earlier run of the same program has shown of its steps, and what its plan warns of for that reason."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress

from .. import ids
from ..checks.scaling import Network, Pace, dominating
from ..errors import CorruptRunError
from ..hardware import accelerators, machines
from ..job.findings import Facts, Finding
from ..job.job import Job
from ..job.layout import RootPaths, RunPaths
from ..job.plan import PackedCode
from ..job.policies import Target
from ..records.accounts import ACCOUNTED, recorded
from ..records.events import Event
from ..records.plans import read_plan
from ..records.recorder import read_events
from ..storage import posix

# The newest runs that are asked: most have what is looked for.
_ASKED = 10


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
    rates = [machines.gbit(pool.machine, pool.accelerator.name) for pool in rentals[0].pools[:2]]
    known_rates = [rate for rate in rates if rate is not None]
    return Network(gbit=min(known_rates), grpc=family != "gpu") if len(known_rates) == len(rates) else None


def last(code: PackedCode, folders: Sequence[str], name: str, facts: Facts) -> Pace | None:
    """Return the pace of the newest run of a program below some roots that has one."""
    roots = [RootPaths(folder) for folder in folders]
    runs = [root.run(run_id) for root in roots for run_id in _listed(root.runs) if ids.name_of(run_id) == name]
    for paths in sorted(runs, key=_submitted, reverse=True)[:_ASKED]:
        # A damaged run says nothing about its pace.
        with suppress(CorruptRunError, OSError, ValueError, TypeError, KeyError):
            events = read_events(paths, ("first_step", ACCOUNTED))
            if (size := _gradient_bytes(events)) is None:
                continue
            plan = read_plan(paths, paths.root)
            step_s = _step_s(events, plan.tasks[0]) if _is_same(plan.code, code) else None
            if step_s is not None:
                return Pace(
                    run=plan.run_id,
                    gradient_bytes=size,
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


def _gradient_bytes(events: Sequence[Event]) -> int | None:
    measured = [event for event in events if event.data.get("gradient_bytes")]
    return int(max(measured, key=lambda event: event.attempt).data["gradient_bytes"]) if measured else None


def _step_s(events: Sequence[Event], task: str) -> float | None:
    """Return the seconds per step of the last attempt, waiting for input included; the first step is part of compiling."""
    by_attempt = recorded(events, task)
    account = by_attempt[max(by_attempt)] if by_attempt else None
    if account is None or account.steps < 2:
        return None
    return (account.step + account.input_wait) / (account.steps - 1) or None
