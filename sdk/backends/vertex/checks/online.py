"""Findings from the cloud's answers (`--online`) about the bucket, the image and the quotas."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ....checks import buckets
from ....hardware import pricing
from ....job.findings import Facts, Finding, error, note, warning
from ....job.job import Job
from ....text import emulator_at, joined, money
from ..options import Vertex
from . import settings

# A response of a cloud, as JSON.
Answer = Mapping[str, Any]
# By default 0 in us-central1 (documentation of Vertex AI, quotas, read 2026-11).
_ZERO = frozenset(
    (
        *("NVIDIA_L4", "NVIDIA_RTX_PRO_6000", "NVIDIA_H100_MEGA_80GB", "NVIDIA_H200_141GB", "NVIDIA_GB200"),
        *("TPU_V2", "TPU_V3"),
    )
)
_ROLE = "roles/artifactregistry.reader"


def run(job: Job, target: Vertex, facts: Facts, root: str, *, emulator: str = "") -> Iterator[Finding]:
    answers = facts.online
    if "bucket" in answers:
        yield from _bucket(answers["bucket"], target, emulator)
    elif root.startswith("gs://") and not root.startswith("gs://<"):
        name = root.split("/")[2]
        message = (
            f"It was not checked whether gs://{name} exists, in a region of the job ({', '.join(target.region_names)})"
        )
        yield note(f"{message}. Next: podlift plan --online")
    if "output" in answers:
        yield from _output(answers["output"], target, emulator)
    for key, name in target.named_images.items():
        if key in answers:
            yield _image(answers[key], name)
    yield from settings.online(answers.get("settings", {}), job, target)
    yield from _quotas(answers.get("quotas", {}), job, target, emulator)


def _bucket(answer: Answer, target: Vertex, emulator: str) -> Iterator[Finding]:
    name, about = answer["name"], answer["about"]
    if "seen" in answer:
        # It was checked before, or it is one of an emulator.
        when = f" Checked on {answer['seen']}; podlift plan --online checks again." if answer["seen"] else ""
        yield from (
            replace(finding, message=finding.message + when) for finding in _region_of(name, about, target, emulator)
        )
    elif answer["exists"] is None:
        yield Finding("note", f"The bucket gs://{name} was not checked. {answer['error']}")
    elif not answer["exists"]:
        # The default location is multi-regional, which training does not accept.
        listed = "" if emulator else ", or gcloud storage ls"
        missing = f"There is no bucket gs://{name}. Next: {_create(name, target.region_names[0], emulator)}{listed}."
        yield Finding("error", missing if answer["status"] == 404 else str(answer["error"]))
    elif not about:
        describe = f"gcloud storage buckets describe gs://{name}"
        yield note(f"Objects of gs://{name} can be listed, but its location cannot be read. Next: {describe}")
    else:
        yield from _region_of(name, about, target, emulator)
        if emulator:
            return
        for row in buckets.retention_checks(name, about):
            if not row.ok:
                yield warning(f"{row.said[0].upper()}{row.said[1:]}. Next: {row.command}")


def root_bucket(root: str, about: Answer, target: Vertex, *, emulator: str) -> list[Finding]:
    """Check the kind and the region of a root's bucket; `about` is its resource in Cloud Storage."""
    return [*_region_of(root.split("/")[2], about, target, emulator)]


def _create(name: str, region: str, emulator: str) -> str:
    name = "NAME" if buckets.name_problem(name) else name
    # gcloud would create a real bucket, which an emulator does not see.
    if emulator:
        return f"start the {emulator_at(emulator)} with --bucket {name}@{region}"
    return f"gcloud storage buckets create gs://{name} --location={region}"


def _region_of(name: str, about: Answer, target: Vertex, emulator: str) -> Iterator[Finding]:
    where, regions = str(about.get("location", "")).lower(), list(target.region_names)
    wrong = unfit(name, about, regions[0], emulator)
    elsewhere = [region for region in regions if region != where]
    if wrong:
        yield error(wrong)
    elif elsewhere == regions:
        yield _nowhere_near(name, where, target)
    else:
        yield note(f"gs://{name} exists, in {where}")
        yield from (_from_afar(name, where, region, emulator) for region in elsewhere)


def unfit(name: str, about: Answer, region: str, emulator: str) -> str:
    """Return why training cannot use a bucket of this kind, "" if it can."""
    where, kind = str(about.get("location", "")).upper(), about.get("locationType")
    create = f"Next: {_create('NAME', region, emulator)}"
    if kind == "zone":
        return f"gs://{name} is a zonal bucket, where objects are visible before they are complete. {create}"
    if kind in ("multi-region", "dual-region"):
        needed = "training on Vertex AI needs one in a single region"
        return f"gs://{name} is a {kind} bucket ({where}), but {needed}. {create}"
    return ""


def _nowhere_near(name: str, where: str, target: Vertex) -> Finding:
    there = dict.fromkeys(str(replace(location, region=where)) for location in target.locations)
    return error(
        f"gs://{name} is in {where}, but Vertex AI needs its output directory in the job's region. "
        f"Received: vertex_regions={list(target.regions)}",
        {"vertex.regions": [*there]},
    )


def _from_afar(name: str, where: str, region: str, emulator: str) -> Finding:
    """The additional costs of a job in another region than the run's bucket, and the features that it lacks."""
    job = f"A job in {region} reads and writes gs://{name} in {where}; it has no output directory of Vertex AI"
    if emulator:
        return note(job)
    usd, source = pricing.reading(where, region), pricing.READING
    reading = "priced per GiB by Google: price not known to podlift"
    if usd is not None:
        reading = f"{money(usd)} per GiB ({source.name}, {source.date})"
    return note(f"{job}. Reading: {reading}. Writing: priced per GiB by Google: price not known to podlift")


def raw_output(target: Vertex) -> str:
    """Return the output directory that raw names in a bucket, "" for none."""
    value: object = target.raw
    for name in ("jobSpec", "baseOutputDirectory", "outputUriPrefix"):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value if isinstance(value, str) and value.startswith("gs://") else ""


def _output(answer: Answer, target: Vertex, emulator: str) -> Iterator[Finding]:
    """The bucket of an output directory in raw, which must be in the region of each job."""
    name, about, regions = answer["name"], answer["about"], target.region_names
    there = str(about.get("location", "")).lower()
    elsewhere = [region for region in regions if region != there] if about else []
    received = f"Received: baseOutputDirectory {raw_output(target)!r} in raw"
    if answer["exists"] is False:
        missing = f"There is no bucket gs://{name}" if answer["status"] == 404 else str(answer["error"]).rstrip(".")
        yield error(f"{missing}. {received}. Next: {_create(name, regions[0], emulator)}")
    elif wrong := unfit(name, about, regions[0], emulator):
        yield error(f"{wrong}. {received}")
    elif elsewhere:
        where = joined(elsewhere, "or")
        yield error(
            f"gs://{name} is in {there}, but Vertex AI needs the output directory of a job in {where} there. {received}"
        )


def _image(answer: Answer, name: str) -> Finding:
    if answer["exists"]:
        return note(f"The image {name} exists; Vertex AI's service agent needs {_ROLE} to pull it")
    reason = answer["error"].rstrip(".")
    if answer["exists"] is None:
        next_step = f"gcloud artifacts docker images describe {name}"
        return note(f"The image {name} was not checked: {reason}. Next: {next_step}")
    listed = f"gcloud artifacts docker images list {name.partition('@')[0].rpartition('/')[0]}"
    return error(f"There is no image {name!r} ({reason}). Next: push it, or list the images: {listed}")


@dataclass(frozen=True, kw_only=True)
class QuotaLimit:
    """The limit of a quota in regions: None if it is not listed, -1 for none, or why it is not known."""

    needed: pricing.Quota
    where: str
    limit: int | None
    error: str = ""

    @property
    def too_low(self) -> bool:
        return self.limit is not None and 0 <= self.limit < (self.needed.amount or 0)

    @property
    def text(self) -> str:
        """The limit and the need, as a sentence without its full stop."""
        of, amount = self.needed, self.needed.amount
        if self.limit is None:
            return f"No limit of {of.metric} is known for {self.where}; {amount} are needed"
        if self.too_low:
            return f"The quota {of.metric} is {self.limit} in {self.where}, but {amount} are needed ({of.what})"
        return f"The quota {of.metric} is {'unlimited' if self.limit < 0 else self.limit} in {self.where}; {amount} are needed"


def limits(answer: Answer, job: Job, target: Vertex) -> Iterator[QuotaLimit]:
    """Yield the limit of each quota that a job counts against, with the regions where it is the same."""
    locations = target.locations_for(job.resources)
    rentals = [(location, target.rental(job.resources, job.limits, location)) for location in locations]
    demands = [(needed, location.region) for location, rented in rentals for needed in pricing.quotas(rented)]
    for needed in dict.fromkeys(quota for quota, _ in demands):
        of_metric = answer.get(needed.metric or "")
        if of_metric is None or needed.amount is None:
            continue
        by_limit: dict[int | None, list[str]] = {}
        for region in dict.fromkeys(region for quota, region in demands if quota == needed):
            by_limit.setdefault(of_metric.get("limits", {}).get(region), []).append(region)
        for limit, regions in by_limit.items():
            error = "" if of_metric["exists"] else of_metric["error"].rstrip(".")
            yield QuotaLimit(needed=needed, where=", ".join(regions), limit=limit, error=error)


def most_runs(answer: Answer, job: Job, target: Vertex) -> int | None:
    """Return how many runs of a job the quotas of all its regions allow together; None if that of a region is not known."""
    allowed = dict[str, int]()
    for quota in limits(answer, job, target):
        for region in quota.where.split(", ") if quota.limit is not None and quota.limit >= 0 else ():
            runs = (quota.limit or 0) // (quota.needed.amount or 1)
            allowed[region] = min(runs, allowed.get(region, runs))
    return sum(allowed.values()) if {*target.region_names} == allowed.keys() else None


def _quotas(answer: Answer, job: Job, target: Vertex, emulator: str) -> Iterator[Finding]:
    """A quota that is lower than the job needs, in each region that it may run in."""
    if not answer and not emulator:
        yield from _zero_by_default(job, target)
    quotas, listed = list(limits(answer, job, target)), "" if emulator else f". Next: {_command(str(target.project))}"
    for quota in quotas:
        if quota.error:
            continue
        if quota.too_low and emulator:
            text = f"{quota.text}: the {emulator_at(emulator)} would reject the job, by its fault of kind 'quota'"
            yield warning(text)
        elif quota.too_low:
            next_step = f"request more at {quota_page(str(target.project))}, or choose another region"
            yield warning(f"{quota.text}: Vertex AI would reject the job. Next: {next_step}")
        else:
            yield note(f"{quota.text}{listed if quota.limit is None else ''}")
    for reason in dict.fromkeys(quota.error for quota in quotas if quota.error):
        metrics = ", ".join(str(quota.needed.metric) for quota in quotas if quota.error == reason)
        yield note(f"Quotas were not checked: {reason} ({metrics}){listed}")


def _zero_by_default(job: Job, target: Vertex) -> Iterator[Finding]:
    """Quotas that are zero until a project requests them; they were not queried."""
    rows = {pool.accelerator.title for pool in target.pools(job.resources) if pool.accelerator.type in _ZERO}
    preemptible = {location.provisioning for location in target.locations_for(job.resources)} != {"standard"}
    if rows and not preemptible:
        named = joined(sorted(rows), "and")
        yield note(f"A new project's quota of {named} is 0. Next: podlift plan --online, which reads it")


def quota_page(project: str) -> str:
    return f"https://console.cloud.google.com/iam-admin/quotas?project={project}"


def _command(project: str) -> str:
    return f"gcloud alpha services quota list --service=aiplatform.googleapis.com --consumer=projects/{project}"
