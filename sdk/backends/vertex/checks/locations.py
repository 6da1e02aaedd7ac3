"""Checks of the locations of a job, and of settings that contradict them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import cast

from ....hardware import Provisioning
from ....job.findings import Finding, error, warning
from ....job.job import Job
from ....job.policies import Resources
from ....job.values import changed
from ..options import Location, Vertex

Check = Callable[[Job, Vertex], Iterable[Finding]]


def each(job: Job, target: Vertex, checks: Sequence[Check]) -> list[Finding]:
    """Return the findings of checks in every location; a finding that does not hold for all of them names its locations."""
    if target.plain:
        return [finding for check in checks for finding in check(job, target)]
    by_message: dict[tuple[str, str], tuple[Finding, list[int]]] = {}
    for index, location in enumerate(target.locations):
        there, resources = target.at(location, job.resources)
        for check in checks:
            for finding in check(changed(job, resources=resources), there):
                by_message.setdefault((finding.level, finding.message), (finding, []))[1].append(index)
    return [_of_locations(finding, indices, target) for finding, indices in by_message.values()]


def _of_locations(finding: Finding, indices: Sequence[int], target: Vertex) -> Finding:
    """Return a finding about some locations: with their names, and with the nearest valid choice as locations."""
    sentence, locations = finding.message.partition(" Nearest: ")[0].rstrip("."), list(target.locations)
    if len(indices) < len(locations):
        sentence = f"{', '.join(str(locations[index]) for index in indices)}: {sentence}"
    nearest = dict[str, object]()
    for path, value in finding.nearest:
        mended = {index: _mended(locations[index], path, value) for index in indices}
        if any(mended.values()):
            locations = [mended.get(index) or location for index, location in enumerate(locations)]
            nearest["vertex.regions"] = [*dict.fromkeys(map(str, locations))]
        else:
            nearest[path] = value
    if finding.level == "error":
        return error(sentence, nearest)
    return Finding(finding.level, sentence if sentence.endswith("?") else f"{sentence}.")


def _mended(location: Location, path: str, value: object) -> Location | None:
    """Return a location with its part of a change of the job or the target, None if the location does not set it itself."""
    if path == "vertex.regions" and isinstance(value, (list, tuple)):
        return replace(location, region=value[0])
    if path == "vertex.provisioning":
        return replace(location, provisioning=cast("Provisioning", value))
    if path == "resources.accelerator" and location.accelerator is not None:
        return replace(location, accelerator=str(value))
    return None


def contradictions(target: Vertex, resources: Resources) -> Iterator[Finding]:
    """A provisioning that no location uses, and a location that is named twice."""
    own, texts = [location.provisioning for location in target.locations], list(target.regions)
    standard = Vertex().provisioning
    if target.provisioning != standard and None not in own and target.provisioning not in own:
        yield error(
            f"Every location has its own provisioning. Received: vertex_provisioning={target.provisioning!r}, "
            f"vertex_regions={texts}",
            {"vertex.provisioning": own[0]},
        )
    # us-central1 and us-central1:standard are one location.
    locations = target.locations_for(resources)
    if twice := [text for index, text in enumerate(texts) if locations[index] in locations[:index]]:
        message = f"{', '.join(dict.fromkeys(twice))} is named more than once in vertex_regions"
        distinct = [text for index, text in enumerate(texts) if locations[index] not in locations[:index]]
        yield error(message, {"vertex.regions": distinct})


def hardware(job: Job, target: Vertex) -> Iterator[Finding]:
    """Locations with other hardware than the first one, and the effects of a move on a training."""
    locations, replicas = target.locations_for(job.resources), target.replicas(job.resources)
    if any(count != replicas[0] for count in replicas):
        counts = ", ".join(f"{location} {count}" for location, count in zip(locations, replicas, strict=True))
        message = (
            f"The locations have different numbers of replicas: {counts}. ctx.global_batch_size() is the size for the first in "
            "all of them. A program that computes its batch size from the number of replicas changes it with the location"
        )
        yield warning(message)
    if len({location.accelerator for location in locations}) > 1:
        yield warning(
            "The locations have different accelerators: a run that moves does not end with the same weights bit by bit"
        )
