"""Checks of what a job for Vertex AI runs on: accelerator, machine, region, provisioning.

Each takes the Job and the Vertex as JSON. The sources are those of the table of hardware.
"""

from __future__ import annotations

import re

from ..hardware import Release, accelerators, machines, regions
from ..hardware.accelerators import Accelerator
from ..spec.findings import TENSORFLOW_RANGE, Facts, Finding, error, note, warning
from ..spec.job import Job
from ..spec.policies import Vertex
from ..text import and_more, compact_duration

WEEK_S = 7 * 86400.0
_SHOWN = 4
_IMAGE_RELEASE = re.compile(r"/?tensorflow[a-z-]*:(\d+)\.(\d+)")


def hardware(job: Job) -> Accelerator:
    """Return the row that a job gets; for a refused row, the nearest one that is available."""
    requested = accelerators.lookup(job.resources.accelerator)
    return accelerators.row(requested.instead) if requested.refused else requested


def offered(job: Job, target: Vertex) -> list[Finding]:
    """An accelerator that is not available for training, or not with TensorFlow, or only with a reservation."""
    requested = accelerators.lookup(job.resources.accelerator)
    if requested.refused:
        return [
            error(
                f"accelerator={requested.name!r} is not available: {requested.refused}",
                {"resources.accelerator": requested.instead},
            )
        ]
    if requested.reservation and "reservationAffinity" not in str(target.raw):
        return [
            error(
                f"{requested.name} needs a reservation, but Vertex(raw=...) sets no reservationAffinity in a machineSpec",
                {"resources.accelerator": "b200:8"},
            )
        ]
    return []


def one_task(job: Job, target: Vertex | None = None) -> list[Finding]:
    """A TPU with more than one task: Vertex AI allows one pool with one replica."""
    requested, row = job.resources, hardware(job)
    change = {
        f"resources.{name}": alone
        for name, alone in (("workers", 1), ("ps", 0), ("evaluator", False))
        if getattr(requested, name) != alone
    }
    if row.family != "tpu" or not change:
        return []
    received = ", ".join(
        f"{name.rpartition('.')[2]}={getattr(requested, name.rpartition('.')[2])!r}" for name in change
    )
    return [error(f"A job with TPUs has exactly one task, whatever its topology. Received: {received}", change)]


def machine(job: Job, target: Vertex) -> list[Finding]:
    """A machine type that is not available for training, or that does not come with this accelerator."""
    requested, row = target.machine, hardware(job)
    if requested is None:
        return []
    if row.family == "cpu":
        return [] if machines.allowed(requested) else [_not_for_cpu(requested)]
    if requested not in row.machines:
        return [_without_accelerator(requested, row)]
    if requested in machines.TIGHT:
        return [warning(f"{requested} has so little memory that with an accelerator its logs may stop")]
    return []


def _not_for_cpu(requested: str) -> Finding:
    owners = [row for row in accelerators.ROWS if requested in row.machines and row.family != "cpu"]
    attached = [row for row in owners if requested in machines.N1]
    if owners and not attached:
        row = min(owners, key=lambda row: (bool(row.refused), row.hosts, row.chips))
        name = row.instead or row.name
        change: dict[str, object] = {"resources.accelerator": name, "vertex.machine": accelerators.row(name).machine}
        return error(
            f"The machine type {requested!r} includes an accelerator, but accelerator='cpu' requests none", change
        )
    return error(
        f"The machine type {requested!r} is not available for training. Known: e2, n1 from n1-standard-4 on, n2, n4, c2 and m1 "
        "machines",
        {"vertex.machine": machines.nearest(requested)},
    )


def _without_accelerator(requested: str, row: Accelerator) -> Finding:
    same = [other for other in accelerators.ROWS if requested in other.machines and _kind(other) == _kind(row)]
    spread = next((f" (it would take {other.hosts} of them)" for other in same if other.chips == row.chips), "")
    message = (
        f"The machine type {requested!r} does not come with {row.name}{spread}: {row.name} comes with "
        f"{and_more(row.machines, _SHOWN)}"
    )
    if len(same) == 1 and not same[0].refused and requested not in machines.N1:
        return error(message, {"resources.accelerator": same[0].name})
    return error(message, {"vertex.machine": machines.nearest(requested, row.machines)})


def _kind(row: Accelerator) -> str:
    return row.name.partition(":")[0] if row.family == "gpu" else row.name.partition("-")[0]


def region(job: Job, target: Vertex) -> list[Finding]:
    """An accelerator that a region does not have, or may not have."""
    row = hardware(job)
    requested = [name for name in target.regions if regions.is_region(name)]
    if row.regions is not None:
        bad = [name for name in requested if name not in row.regions]
        if not bad:
            return []
        left = [name for name in requested if name in row.regions] or [regions.nearby(bad[0], row.regions)]
        has = f"{row.name} is available in {', '.join(row.regions)}, not in {', '.join(bad)}"
        return [error(has, {"vertex.regions": left})]
    doubt = [name for name in requested if name not in row.seen_in]
    if not doubt or row.family == "cpu":
        return []
    return [warning(f"It is unknown whether {', '.join(doubt)} has {row.name}; {', '.join(row.seen_in)} has it")]


def provisioning(job: Job, target: Vertex) -> list[Finding]:
    """Spot or flex-start for hardware that is not offered that way."""
    requested, row = target.provisioning, hardware(job)
    standard: dict[str, object] = {"vertex.provisioning": "standard"}
    # Judge the requested row: its nearest row may have one machine instead of many.
    hosts = accelerators.lookup(job.resources.accelerator).hosts
    if requested == "spot" and hosts > 1:
        return [error("TPUs on several machines are not available as spot machines", standard)]
    return _flex(job, target, row, standard) if requested == "flex" else []


def _flex(job: Job, target: Vertex, row: Accelerator, standard: dict[str, object]) -> list[Finding]:
    found = []
    if row.family == "tpu":
        found.append(error(f"Flex-start is for GPUs, not for TPUs. Received: accelerator={row.name!r}", standard))
    elif row.flex is False:
        listed = dict.fromkeys(_kind(other) for other in accelerators.ROWS if other.flex)
        message = f"Flex-start is offered for {', '.join(listed)}. Received: accelerator={row.name!r}"
        found.append(error(message, standard))
    elif row.flex is None:
        found.append(warning(f"It is unknown whether flex-start is offered for {row.name}"))
    different = sorted({(pool.machine, pool.accelerator.name) for pool in target.pools(job.resources)})
    if len(different) > 1:
        received = ", ".join(f"{machine} with {name}" for machine, name in different)
        found.append(error(f"Flex-start needs the same machine in every pool. Received: {received}", standard))
    timeout_s = job.limits.timeout_s
    if timeout_s is not None and timeout_s > WEEK_S:
        message = f"Flex-start ends after 7 days. Received: timeout={compact_duration(timeout_s)!r}"
        found.append(error(message, {"limits.timeout_s": WEEK_S}))
    return found


def supported(row: Accelerator) -> tuple[Release, Release]:
    """Return the oldest and the newest TensorFlow that podlift is tested with and that the hardware runs."""
    low, high = TENSORFLOW_RANGE
    return (low, high) if row.tensorflow is None else (max(low, row.tensorflow[0]), min(high, row.tensorflow[1]))


def tensorflow(job: Job, target: Vertex, facts: Facts) -> list[Finding]:
    """A TensorFlow that the hardware does not run. A warning only: the one in the image counts."""
    row = hardware(job)
    low, high = supported(row)
    span = f"{low[0]}.{low[1]} to {high[0]}.{high[1]}"
    why = f"{row.name} needs TensorFlow" if row.tensorflow else "podlift is tested with TensorFlow"
    found = []
    tagged = _IMAGE_RELEASE.search(target.image or "")
    if tagged and not low <= (int(tagged[1]), int(tagged[2])) <= high:
        found.append(warning(f"{why} {span}, but the image's name says {tagged[1]}.{tagged[2]}"))
    here = re.match(r"(\d+)\.(\d+)", facts.tensorflow or "")
    if here and not tagged and not low <= (int(here[1]), int(here[2])) <= high:
        ends = f": tensorflow-tpu ends with {high[0]}.{high[1]}" if row.tensorflow else ""
        found.append(warning(f"{why} {span} in the image{ends}; here it is {facts.tensorflow}"))
    if job.code.keras == "legacy":
        found.append(note("code_keras='legacy' needs tf_keras, in the image or among the requirements"))
    return found
