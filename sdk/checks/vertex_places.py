"""Checks of the places of a job: what each of them asks for, and settings that say something else."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from ..job.findings import Finding, error, warning
from ..job.job import Job
from ..job.places import Place
from ..job.policies import Vertex
from ..job.values import changed

Check = Callable[[Job, Vertex], Iterable[Finding]]


def each(job: Job, target: Vertex, checks: Sequence[Check]) -> list[Finding]:
    """Return the findings of checks in every place; one that does not hold for all of them names its places."""
    if not target.places:
        return [finding for check in checks for finding in check(job, target)]
    found: dict[tuple[str, str], tuple[Finding, list[int]]] = {}
    for index, place in enumerate(target.places):
        there, resources = target.at(place, job.resources)
        for check in checks:
            for finding in check(changed(job, resources=resources), there):
                found.setdefault((finding.level, finding.message), (finding, []))[1].append(index)
    return [_of_places(finding, indices, target) for finding, indices in found.values()]


def _of_places(finding: Finding, indices: Sequence[int], target: Vertex) -> Finding:
    """Return a finding about some places: with their names, and with the nearest valid choice as places."""
    sentence, places = finding.message.partition(" Nearest: ")[0].rstrip("."), list(target.places)
    if len(indices) < len(places):
        sentence = f"{', '.join(str(places[index]) for index in indices)}: {sentence}"
    nearest = dict[str, object]()
    for path, value in finding.nearest:
        mended = {index: _mended(places[index], path, value) for index in indices}
        if any(mended.values()):
            places = [mended.get(index) or place for index, place in enumerate(places)]
            nearest["vertex.places"] = tuple(dict.fromkeys(places))
        else:
            nearest[path] = value
    if finding.level == "error":
        return error(sentence, nearest)
    return Finding(finding.level, sentence if sentence.endswith("?") else f"{sentence}.")


def _mended(place: Place, path: str, value: object) -> Place | None:
    """Return a place with a change of the job or the target that concerns it, None if it does not say that itself."""
    if path == "vertex.regions" and isinstance(value, (list, tuple)):
        return changed(place, region=value[0])
    if path == "vertex.provisioning":
        return changed(place, provisioning=value)
    if path == "resources.accelerator" and place.accelerator is not None:
        return changed(place, accelerator=value)
    return None


def contradictions(target: Vertex) -> Iterator[Finding]:
    """Regions or a provisioning beside places that use neither, and a place that is named twice."""
    places, plain = target.places, Vertex()
    if not places:
        return
    if target.regions != plain.regions and set(target.regions) != set(target.place_regions):
        message = (
            f"vertex_regions and vertex_places name different regions. Received: vertex_regions={list(target.regions)}"
        )
        yield error(f"{message}, vertex_places={[*map(str, places)]}", {"vertex.regions": list(target.place_regions)})
    own = [place.provisioning for place in places]
    if target.provisioning != plain.provisioning and None not in own and target.provisioning not in own:
        message = f"Every place has a provisioning of its own. Received: vertex_provisioning={target.provisioning!r}"
        yield error(f"{message}, vertex_places={[*map(str, places)]}", {"vertex.provisioning": own[0]})
    if len(set(places)) < len(places):
        once = tuple(dict.fromkeys(places))
        yield error(f"vertex_places names a place twice. Received: {[*map(str, places)]}", {"vertex.places": once})


def hardware(job: Job, target: Vertex) -> Iterator[Finding]:
    """Places with other hardware than the first one: what a training keeps there, and what it does not."""
    places, replicas = target.places_for(job.resources), target.replicas(job.resources)
    if any(count != replicas[0] for count in replicas):
        each = ", ".join(f"{place} {count}" for place, count in zip(places, replicas, strict=True))
        message = (
            f"The places have different numbers of replicas: {each}. ctx.global_batch_size() is that of the first place in all "
            "of them. A program that computes a batch of its own from the number of replicas changes it with the place"
        )
        yield warning(message)
    if len({place.accelerator for place in places}) > 1:
        yield warning(
            "The places have different accelerators: a run that moves does not end with the same weights bit by bit"
        )
