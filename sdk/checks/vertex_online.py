"""Findings from what the cloud answered (`--online`) about the bucket, the image and the quotas."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from ..hardware import pricing
from ..spec.findings import Facts, Finding, error
from ..spec.job import Job
from ..spec.policies import Vertex
from . import buckets

_ROLE = "roles/artifactregistry.reader"


def run(job: Job, target: Vertex, facts: Facts, root: str = "") -> list[Finding]:
    known = facts.online
    if "bucket" not in known:
        found = _not_checked(root, target)
    elif "seen" in known["bucket"]:
        found = _checked_before(root, known["bucket"], target)
    else:
        found = [*_bucket(known["bucket"], target)]
    found += [_image(known["image"], str(target.image))] if "image" in known else []
    return [*found, *_quotas(known.get("quotas", {}), job, target)]


def _bucket(known: Mapping[str, Any], target: Vertex) -> Iterator[Finding]:
    name, about = known["name"], known["about"]
    if known["exists"] is None:
        yield Finding("note", f"The bucket gs://{name} was not checked. {known['error']}")
        return
    if not known["exists"]:
        # The default location is multi-regional, which training does not accept.
        create = f"gcloud storage buckets create gs://{name} --location={target.regions[0]}"
        missing = f"There is no bucket gs://{name}. Next: {create}, or gcloud storage ls."
        yield Finding("error", missing if known["status"] == 404 else str(known["error"]))
        return
    if not about:
        describe = f"gcloud storage buckets describe gs://{name}"
        yield Finding(
            "note", f"Objects of gs://{name} can be listed, but its location cannot be read. Next: {describe}."
        )
        return
    yield from _place(name, about, target)
    for message, option in (
        (buckets.soft_delete(about), buckets.NO_SOFT_DELETE),
        (buckets.versioning(about), buckets.NO_VERSIONING),
    ):
        if message:
            yield Finding("warning", f"{message[0].upper()}{message[1:]}. Next: {buckets.update(name, option)}.")


def _not_checked(root: str, target: Vertex) -> list[Finding]:
    if not root.startswith("gs://") or root.startswith("gs://<"):
        return []
    name = root.removeprefix("gs://").partition("/")[0]
    message = f"It was not checked whether gs://{name} exists, in a region of the job ({', '.join(target.regions)})"
    return [Finding("note", f"{message}. Next: podlift plan --online.")]


def _checked_before(root: str, known: Mapping[str, Any], target: Vertex) -> list[Finding]:
    """A bucket that was checked before, or one of an emulator."""
    when = f" Checked on {known['seen']}; podlift plan --online checks again." if known["seen"] else ""
    return [replace(finding, message=finding.message + when) for finding in place(root, known["about"], target)]


def place(root: str, about: Mapping[str, Any], target: Vertex) -> list[Finding]:
    """Check the kind and the region of a root's bucket; `about` is its resource in Cloud Storage."""
    return [*_place(root.removeprefix("gs://").partition("/")[0], about, target)]


def _place(name: str, about: Mapping[str, Any], target: Vertex) -> Iterator[Finding]:
    place, kind, regions = str(about.get("location", "")).lower(), about.get("locationType"), list(target.regions)
    create = f"gcloud storage buckets create gs://NAME --location={regions[0]}"
    if kind == "zone":
        message = f"gs://{name} is a zonal bucket, where objects are visible before they are complete"
        yield Finding("error", f"{message}. Next: {create}.")
    elif kind in ("multi-region", "dual-region"):
        message = (
            f"gs://{name} is a {kind} bucket ({place.upper()}), but training on Vertex AI needs one in a single region"
        )
        yield Finding("error", f"{message}. Next: {create}.")
    elif place not in regions:
        message = f"gs://{name} is in {place}, but Vertex AI needs it in the job's region. Received: vertex_regions={regions!r}"
        yield error(message, {"vertex.regions": [place]})
    else:
        yield Finding("note", f"gs://{name} exists, in {place}.")
        elsewhere = [region for region in regions if region != place]
        if elsewhere:
            message = f"gs://{name} is in {place}: the job will not be created in {', '.join(elsewhere)}"
            yield Finding("warning", f"{message}. Next: vertex_regions={[place]!r}.")


def _image(known: Mapping[str, Any], name: str) -> Finding:
    describe = f"gcloud artifacts docker images describe {name}"
    if known["exists"] is None:
        return Finding("note", f"The image {name} was not checked: {known['error'].rstrip('.')}. Next: {describe}.")
    if not known["exists"]:
        listed = f"gcloud artifacts docker images list {name.partition('@')[0].rpartition('/')[0]}"
        message = f"There is no image {name!r} ({known['error'].rstrip('.')})"
        return Finding("error", f"{message}. Next: push it, or list the images: {listed}.")
    return Finding("note", f"The image {name} exists; Vertex AI's service agent needs {_ROLE} to pull it.")


def _quotas(known: Mapping[str, Any], job: Job, target: Vertex) -> Iterator[Finding]:
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
        for region in target.regions:
            by_limit.setdefault(of_metric["limits"].get(region), []).append(region)
        for limit, regions in by_limit.items():
            yield _quota(needed, limit, ", ".join(regions), str(target.project))
    for message, metrics in unknown.items():
        listed = _command(str(target.project))
        yield Finding("note", f"Quotas were not checked: {message.rstrip('.')} ({', '.join(metrics)}). Next: {listed}.")


def _quota(needed: pricing.Quota, limit: int | None, where: str, project: str) -> Finding:
    if limit is None:
        message = f"No limit of {needed.metric} is known for {where}; {needed.amount} are needed"
        return Finding("note", f"{message}. Next: {_command(project)}.")
    if 0 <= limit < (needed.amount or 0):
        message = f"The quota {needed.metric} is {limit} in {where}, but {needed.amount} are needed ({needed.what})"
        page = f"https://console.cloud.google.com/iam-admin/quotas?project={project}"
        return Finding(
            "warning",
            f"{message}: Vertex AI would reject the job. Next: request more at {page}, or choose another region.",
        )
    amount = "unlimited" if limit < 0 else f"{limit}"
    return Finding("note", f"The quota {needed.metric} is {amount} in {where}; {needed.amount} are needed.")


def _command(project: str) -> str:
    return f"gcloud alpha services quota list --service=aiplatform.googleapis.com --consumer=projects/{project}"
