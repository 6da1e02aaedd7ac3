"""Findings from what the cloud answered (`--online`) about the bucket, the image and the quotas."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from ..hardware import pricing
from ..spec.findings import Facts, Finding, error, note, warning
from ..spec.job import Job
from ..spec.policies import Vertex
from ..text import emulator_at
from . import buckets

_ROLE = "roles/artifactregistry.reader"


def run(job: Job, target: Vertex, facts: Facts, root: str, *, emulator: str = "") -> Iterator[Finding]:
    known = facts.online
    if "bucket" in known:
        yield from _bucket(known["bucket"], target, emulator)
    elif root.startswith("gs://") and not root.startswith("gs://<"):
        name = root.split("/")[2]
        message = (
            f"It was not checked whether gs://{name} exists, in a region of the job ({', '.join(target.place_regions)})"
        )
        yield note(f"{message}. Next: podlift plan --online")
    if "image" in known:
        yield _image(known["image"], str(target.image))
    yield from _quotas(known.get("quotas", {}), job, target, emulator)


def _bucket(known: Mapping[str, Any], target: Vertex, emulator: str) -> Iterator[Finding]:
    name, about = known["name"], known["about"]
    if "seen" in known:
        # It was checked before, or it is one of an emulator.
        when = f" Checked on {known['seen']}; podlift plan --online checks again." if known["seen"] else ""
        yield from (
            replace(finding, message=finding.message + when) for finding in _place(name, about, target, emulator)
        )
    elif known["exists"] is None:
        yield Finding("note", f"The bucket gs://{name} was not checked. {known['error']}")
    elif not known["exists"]:
        # The default location is multi-regional, which training does not accept.
        listed = "" if emulator else ", or gcloud storage ls"
        missing = f"There is no bucket gs://{name}. Next: {_create(name, target.place_regions[0], emulator)}{listed}."
        yield Finding("error", missing if known["status"] == 404 else str(known["error"]))
    elif not about:
        describe = f"gcloud storage buckets describe gs://{name}"
        yield note(f"Objects of gs://{name} can be listed, but its location cannot be read. Next: {describe}")
    else:
        yield from _place(name, about, target, emulator)
        if emulator:
            return
        costs = {buckets.NO_SOFT_DELETE: buckets.soft_delete(about), buckets.NO_VERSIONING: buckets.versioning(about)}
        for option, message in costs.items():
            if message:
                yield warning(f"{message[0].upper()}{message[1:]}. Next: {buckets.update(name, option)}")


def place(root: str, about: Mapping[str, Any], target: Vertex, *, emulator: str) -> list[Finding]:
    """Check the kind and the region of a root's bucket; `about` is its resource in Cloud Storage."""
    return [*_place(root.split("/")[2], about, target, emulator)]


def _create(name: str, region: str, emulator: str) -> str:
    # gcloud would create a real bucket, which an emulator does not see.
    if emulator:
        return f"start the {emulator_at(emulator)} with --bucket {name}@{region}"
    return f"gcloud storage buckets create gs://{name} --location={region}"


def _place(name: str, about: Mapping[str, Any], target: Vertex, emulator: str) -> Iterator[Finding]:
    place, kind, regions = str(about.get("location", "")).lower(), about.get("locationType"), list(target.place_regions)
    create = f"Next: {_create('NAME', regions[0], emulator)}"
    if kind == "zone":
        yield error(f"gs://{name} is a zonal bucket, where objects are visible before they are complete. {create}")
    elif kind in ("multi-region", "dual-region"):
        needed = "training on Vertex AI needs one in a single region"
        yield error(f"gs://{name} is a {kind} bucket ({place.upper()}), but {needed}. {create}")
    elif place not in regions:
        message = f"gs://{name} is in {place}, but Vertex AI needs it in the job's region. Received: vertex_regions={regions!r}"
        yield error(message, {"vertex.regions": [place]})
    else:
        yield note(f"gs://{name} exists, in {place}")
        if elsewhere := [region for region in regions if region != place]:
            message = f"gs://{name} is in {place}: the job will not be created in {', '.join(elsewhere)}"
            yield warning(f"{message}. Next: vertex_regions={[place]!r}")


def _image(known: Mapping[str, Any], name: str) -> Finding:
    if known["exists"]:
        return note(f"The image {name} exists; Vertex AI's service agent needs {_ROLE} to pull it")
    reason = known["error"].rstrip(".")
    if known["exists"] is None:
        next_step = f"gcloud artifacts docker images describe {name}"
        return note(f"The image {name} was not checked: {reason}. Next: {next_step}")
    listed = f"gcloud artifacts docker images list {name.partition('@')[0].rpartition('/')[0]}"
    return error(f"There is no image {name!r} ({reason}). Next: push it, or list the images: {listed}")


def _quotas(known: Mapping[str, Any], job: Job, target: Vertex, emulator: str) -> Iterator[Finding]:
    """A quota that is lower than the job needs, in each region that it may run in."""
    unknown: dict[str, list[str]] = {}
    for needed in pricing.quotas(target.rental(job.resources, job.limits)):
        of_metric = known.get(needed.metric or "")
        if of_metric is None or needed.amount is None:
            continue
        if of_metric["exists"] is None:
            unknown.setdefault(of_metric["error"], []).append(str(needed.metric))
            continue
        by_limit: dict[int | None, list[str]] = {}
        for region in target.place_regions:
            by_limit.setdefault(of_metric["limits"].get(region), []).append(region)
        for limit, regions in by_limit.items():
            yield _quota(needed, limit, ", ".join(regions), str(target.project), emulator)
    listed = "" if emulator else f". Next: {_command(str(target.project))}"
    for message, metrics in unknown.items():
        yield note(f"Quotas were not checked: {message.rstrip('.')} ({', '.join(metrics)}){listed}")


def _quota(needed: pricing.Quota, limit: int | None, where: str, project: str, emulator: str) -> Finding:
    if limit is None:
        message = f"No limit of {needed.metric} is known for {where}; {needed.amount} are needed"
        return note(message if emulator else f"{message}. Next: {_command(project)}")
    if 0 <= limit < (needed.amount or 0):
        message = f"The quota {needed.metric} is {limit} in {where}, but {needed.amount} are needed ({needed.what})"
        if emulator:
            return warning(f"{message}: the {emulator_at(emulator)} would reject the job, by its fault of kind 'quota'")
        page = f"https://console.cloud.google.com/iam-admin/quotas?project={project}"
        next_step = f"request more at {page}, or choose another region"
        return warning(f"{message}: Vertex AI would reject the job. Next: {next_step}")
    amount = "unlimited" if limit < 0 else f"{limit}"
    return note(f"The quota {needed.metric} is {amount} in {where}; {needed.amount} are needed")


def _command(project: str) -> str:
    return f"gcloud alpha services quota list --service=aiplatform.googleapis.com --consumer=projects/{project}"
