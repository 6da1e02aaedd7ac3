"""Checks of the hardware of a job for Vertex AI: accelerator, machine, region, provisioning.

The table of hardware names the sources.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ....checks.hardware import available, hardware
from ....hardware import Release, accelerators, machines, regions
from ....hardware.accelerators import Accelerator
from ....job.findings import TENSORFLOW_RANGE, Facts, Finding, error, note, warning
from ....job.job import Job
from ....text import and_more, compact_duration
from ..options import Vertex

WEEK_S = 7 * 86400.0
_MOST = 4
# Machines of a persistent resource were reserved when it was created.
_RESERVED = re.compile("reservationAffinity|persistentResourceId")
_IMAGE_RELEASE = re.compile(r"/?tensorflow[a-z-]*:(\d+)\.(\d+)")


def offered(job: Job, target: Vertex) -> Iterator[Finding]:
    """An accelerator that is not available for training, or not with a released TensorFlow, or only with a reservation."""
    requested = accelerators.lookup(job.resources.accelerator)
    instead = {"resources.accelerator": requested.instead}
    if requested.refused:
        yield from available(job)
    elif requested.own_tensorflow and not target.own_tensorflow:
        message = (
            f"No released TensorFlow trains on {requested.name}: {requested.own_tensorflow}. If the image has your own one "
            "that does, set vertex_own_tensorflow=True"
        )
        yield error(message, instead)
    elif requested.reservation and not (target.persistent_resource or _RESERVED.search(str(target.raw))):
        message = (
            f"{requested.name} needs a reservation, but Vertex(raw=...) sets no reservationAffinity in a machineSpec"
        )
        yield error(message, instead)


def machine(job: Job, target: Vertex) -> Iterator[Finding]:
    """A machine type that is not available for training, or that does not come with this accelerator."""
    requested, row = target.machine, hardware(job)
    if requested is None:
        return
    if row.family == "cpu":
        if requested not in machines.LISTED:
            yield _not_for_cpu(requested)
    elif requested not in row.machines:
        yield _without_accelerator(requested, row)
    elif requested in machines.TIGHT:
        yield warning(f"{requested} has so little memory that with an accelerator its logs may stop")


def _not_for_cpu(requested: str) -> Finding:
    owners = [row for row in accelerators.ROWS if requested in row.machines]
    if owners and requested not in machines.N1:
        row = min(owners, key=lambda row: (bool(row.refused), row.hosts, row.chips))
        name = row.instead or row.name
        message = f"The machine type {requested!r} includes an accelerator, but accelerator='cpu' requests none"
        return error(message, {"resources.accelerator": name, "vertex.machine": accelerators.row(name).machine})
    family = [name for name in machines.LISTED if name.partition("-")[0] == requested.partition("-")[0]]
    names = and_more(family, _MOST) if family else f"e2, n1, n2, n4, c2 and m1 machines, such as {machines.DEFAULT}"
    message = f"The machine type {requested!r} is not available for training. Known: {names}"
    return error(message, {"vertex.machine": machines.nearest(requested)})


def _without_accelerator(requested: str, row: Accelerator) -> Finding:
    same = [other for other in accelerators.ROWS if requested in other.machines and _kind(other) == _kind(row)]
    spread = next((f" (it would take {other.hosts} of them)" for other in same if other.chips == row.chips), "")
    machine = f"The machine type {requested!r} does not come with {row.name}{spread}"
    message = f"{machine}: {row.name} comes with {and_more(row.machines, _MOST)}"
    if len(same) == 1 and not same[0].refused and requested not in machines.N1:
        return error(message, {"resources.accelerator": same[0].name})
    return error(message, {"vertex.machine": machines.nearest(requested, row.machines)})


def _kind(row: Accelerator) -> str:
    return row.name.partition(":")[0] if row.family == "gpu" else row.name.partition("-")[0]


def region(job: Job, target: Vertex) -> Iterator[Finding]:
    """An accelerator that training does not have in a region."""
    row = hardware(job)
    requested = [name for name in target.region_names if regions.is_region(name)]
    # Another finding reports a region that does not exist.
    absent = [name for name in requested if name not in row.regions and name in regions.KNOWN]
    names = ", ".join(absent)
    if absent:
        left = [name for name in requested if name in row.regions] or [regions.nearby(absent[0], row.regions)]
        message = f"{row.name} is available in {', '.join(row.regions)}, not in {names}"
        if row.family == "cpu":
            message = f"Google's list of regions for custom training does not name {names}"
        yield error(message, {"vertex.regions": left})


def provisioning(job: Job, target: Vertex) -> Iterator[Finding]:
    """Spot or flex-start for hardware that is not offered that way."""
    row, standard = hardware(job), {"vertex.provisioning": "standard"}
    # Judge the requested row: its nearest row may have one machine instead of many.
    if target.provisioning == "spot" and accelerators.lookup(job.resources.accelerator).hosts > 1:
        yield error("TPUs on several machines are not available as spot machines", standard)
    if target.provisioning != "flex":
        return
    if row.family == "tpu":
        yield error(f"Flex-start is for GPUs, not for TPUs. Received: accelerator={row.name!r}", standard)
    elif row.flex is False:
        listed = dict.fromkeys(_kind(other) for other in accelerators.ROWS if other.flex)
        yield error(f"Flex-start is offered for {', '.join(listed)}. Received: accelerator={row.name!r}", standard)
    elif row.flex is None:
        yield warning(f"It is unknown whether flex-start is offered for {row.name}")
    different = sorted({(pool.machine, pool.accelerator.name) for pool in target.pools(job.resources)})
    if len(different) > 1:
        received = ", ".join(f"{machine} with {name}" for machine, name in different)
        yield error(f"Flex-start needs the same machine in every pool. Received: {received}", standard)
    timeout_s = job.limits.timeout_s
    if timeout_s is not None and timeout_s > WEEK_S:
        message = f"Flex-start ends after 7 days. Received: timeout={compact_duration(timeout_s)!r}"
        yield error(message, {"limits.timeout_s": WEEK_S})


def supported(row: Accelerator) -> tuple[Release, Release]:
    """Return the oldest and the newest TensorFlow that podlift is tested with and that the hardware runs."""
    low, high = TENSORFLOW_RANGE
    return (low, high) if row.tensorflow is None else (max(low, row.tensorflow[0]), min(high, row.tensorflow[1]))


def tensorflow(job: Job, target: Vertex, facts: Facts) -> Iterator[Finding]:
    """A TensorFlow that the hardware does not run. A warning only: the one in the image counts."""
    row = hardware(job)
    low, high = supported(row)
    why = f"{row.name} needs TensorFlow" if row.tensorflow else "podlift is tested with TensorFlow"
    why = f"{why} {low[0]}.{low[1]} to {high[0]}.{high[1]}"
    tagged = _IMAGE_RELEASE.search(target.image_on(row.name) or "")
    match = tagged or re.match(r"(\d+)\.(\d+)", facts.tensorflow or "")
    release = (int(match[1]), int(match[2])) if match else None
    if release and row.documented and row.documented < release <= high:
        documented, theirs = (".".join(map(str, version)) for version in (row.documented, release))
        yield note(f"Google documents TensorFlow up to {documented} on {row.name}: {theirs} was not tried there")
    if match and release and not low <= release <= high:
        ends = f": tensorflow-tpu ends with {high[0]}.{high[1]}" if row.tensorflow else ""
        here = f"in the image{ends}; here it is {facts.tensorflow}"
        yield warning(f"{why}, but the image's name has {match[1]}.{match[2]}" if tagged else f"{why} {here}")
    if job.code.keras == "legacy":
        yield note("code_keras='legacy' needs tf_keras, in the image or among the requirements")
