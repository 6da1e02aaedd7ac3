"""What the cloud's answers mean for a plan, where it was asked (`--online`). Each sentence ends with the next step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from ..hardware import pricing
from ..spec.findings import Facts, Finding, error
from . import buckets
from .vertex_hardware import Json

_ROLE = "roles/artifactregistry.reader"


def asked(job: Json, target: Json, facts: Facts, root: str = "") -> list[Finding]:
    """What was learnt of the bucket, the image and the quotas."""
    known = facts.online
    if "bucket" not in known:
        found = _not_looked_at(root, target)
    elif "seen" in known["bucket"]:
        found = _seen(root, known["bucket"], target)
    else:
        found = [*_bucket(known["bucket"], target)]
    found += [_image(known["image"], str(target.get("image")))] if "image" in known else []
    return [*found, *_quotas(known.get("quotas", {}), job, target)]


def _bucket(known: Mapping[str, Any], target: Json) -> Iterator[Finding]:
    name, about = known["name"], known["about"]
    if known["there"] is None:
        yield Finding("note", f"The bucket gs://{name} was not looked at. {known['said']}")
        return
    if not known["there"]:
        # Without a location it becomes one of several regions, which training does not take.
        create = f"gcloud storage buckets create gs://{name} --location={target['regions'][0]}"
        missing = f"There is no bucket gs://{name}. Next: {create}, or gcloud storage ls."
        yield Finding("error", missing if known["status"] == 404 else str(known["said"]))
        return
    if not about:
        describe = f"gcloud storage buckets describe gs://{name}"
        yield Finding(
            "note", f"Objects of gs://{name} can be listed; where it lies is not told to us. Next: {describe}."
        )
        return
    yield from _place(name, about, target)
    for said, option in (
        (buckets.soft_delete(about), buckets.NO_SOFT_DELETE),
        (buckets.versioning(about), buckets.NO_VERSIONING),
    ):
        if said:
            yield Finding("warning", f"{said[0].upper()}{said[1:]}. Next: {buckets.update(name, option)}.")


def _not_looked_at(root: str, target: Json) -> list[Finding]:
    """A bucket of which nothing is known here."""
    if not root.startswith("gs://") or root.startswith("gs://<"):
        return []
    name = root.removeprefix("gs://").partition("/")[0]
    said = f"Whether gs://{name} is there, and in a region of the job ({', '.join(target['regions'])}), was not checked"
    return [Finding("note", f"{said}. Next: podlift plan --online.")]


def _seen(root: str, known: Mapping[str, Any], target: Json) -> list[Finding]:
    """A bucket that was looked at before, or that an emulator has."""
    when = f" Seen on {known['seen']}; podlift plan --online looks again." if known["seen"] else ""
    return [replace(finding, message=finding.message + when) for finding in place(root, known["about"], target)]


def place(root: str, about: Mapping[str, Any], target: Json) -> list[Finding]:
    """Return what there is to say about where the bucket of a root lies.

    Args:
        root: gs://BUCKET/PREFIX.
        about: the bucket as Cloud Storage shows it.
        target: the Vertex as JSON.
    """
    return [*_place(root.removeprefix("gs://").partition("/")[0], about, target)]


def _place(name: str, about: Mapping[str, Any], target: Json) -> Iterator[Finding]:
    """A bucket's kind, and its region beside those of the job."""
    place, kind, regions = str(about.get("location", "")).lower(), about.get("locationType"), list(target["regions"])
    create = f"gcloud storage buckets create gs://NAME --location={regions[0]}"
    if kind == "zone":
        said = f"gs://{name} is a zonal bucket, whose objects are seen before they are whole"
        yield Finding("error", f"{said}. Next: {create}.")
    elif kind in ("multi-region", "dual-region"):
        said = (
            f"gs://{name} is a {kind} bucket ({place.upper()}), and training on Vertex AI takes buckets of one region"
        )
        yield Finding("error", f"{said}. Next: {create}.")
    elif place not in regions:
        said = f"gs://{name} lies in {place}, and Vertex AI wants it in the job's region. Received: regions={regions!r}"
        yield error(said, {"target.regions": [place]})
    else:
        yield Finding("note", f"gs://{name} is there, in {place}.")
        elsewhere = [region for region in regions if region != place]
        if elsewhere:
            said = f"gs://{name} lies in {place}: the job will not be asked for in {', '.join(elsewhere)}"
            yield Finding("warning", f"{said}. Next: name regions={[place]!r} alone.")


def _image(known: Mapping[str, Any], name: str) -> Finding:
    describe = f"gcloud artifacts docker images describe {name}"
    if known["there"] is None:
        return Finding("note", f"The image {name} was not looked at: {known['said'].rstrip('.')}. Next: {describe}.")
    if not known["there"]:
        listed = f"gcloud artifacts docker images list {name.partition('@')[0].rpartition('/')[0]}"
        said = f"There is no image {name!r} ({known['said'].rstrip('.')})"
        return Finding("error", f"{said}. Next: push it, or look at what is there: {listed}.")
    return Finding("note", f"The image {name} is there; Vertex AI's own agent pulls it, and needs {_ROLE}.")


def _quotas(known: Mapping[str, Any], job: Json, target: Json) -> Iterator[Finding]:
    """A limit that is lower than what the job takes, in each region that it may run in."""
    unknown: dict[str, list[str]] = {}
    for needed in pricing.quotas(job):
        of_metric = known.get(needed.metric or "")
        if of_metric is None or needed.amount is None:
            continue
        if of_metric["there"] is None:
            unknown.setdefault(of_metric["said"], []).append(str(needed.metric))
            continue
        by_limit: dict[int | None, list[str]] = {}
        for region in target["regions"]:
            by_limit.setdefault(of_metric["limits"].get(region), []).append(region)
        for limit, regions in by_limit.items():
            yield _quota(needed, limit, ", ".join(regions), str(target.get("project")))
    for said, metrics in unknown.items():
        listed = _command(str(target.get("project")))
        yield Finding("note", f"Quotas were not looked at: {said.rstrip('.')} ({', '.join(metrics)}). Next: {listed}.")


def _quota(needed: pricing.Quota, limit: int | None, where: str, project: str) -> Finding:
    if limit is None:
        said = f"Of {needed.metric} no limit is told for {where}; {needed.amount} are needed"
        return Finding("note", f"{said}. Next: {_command(project)}.")
    if 0 <= limit < (needed.amount or 0):
        said = f"The quota {needed.metric} is {limit} in {where}, and {needed.amount} are needed ({needed.what})"
        page = f"https://console.cloud.google.com/iam-admin/quotas?project={project}"
        return Finding(
            "warning", f"{said}: the job would be refused. Next: ask for more at {page}, or name another region."
        )
    amount = "without a limit" if limit < 0 else f"{limit}"
    return Finding("note", f"The quota {needed.metric} is {amount} in {where}; {needed.amount} are needed.")


def _command(project: str) -> str:
    return f"gcloud alpha services quota list --service=aiplatform.googleapis.com --consumer=projects/{project}"
