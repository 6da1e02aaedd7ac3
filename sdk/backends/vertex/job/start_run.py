"""Starts a run on Vertex AI: uploads the files of its containers, and creates the job, once."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ....clock import Clock, SystemClock
from ....errors import InputError, PodliftError
from ....job.plan import Plan
from ....job.values import changed
from ....records.events import last_resume, source_of
from ....records.recorder import known_resumes, read_events
from ....records.sync.index import SYNC_RETRY
from ....storage.gcs.files import INTERACTIVE, BucketFiles, check_root
from ....storage.gcs.store import GcsStore
from ....storage.parallel import in_parallel
from ...base import Request
from ...containers import Archives, create_spec, upload_archives, upload_requests
from .. import client, service
from ..account import locations
from ..checks import online as online_checks
from ..options import Location, Vertex
from ..wait import keeper
from . import create_job
from . import request as job_request
from .create_job import JobCreation, JobNotCreatedError, JobRequest, LocatedRequest

_REGIONAL = "region"


def check(request: Request) -> None:
    """Reject missing settings, an invalid patch, missing credentials and an unusable bucket."""
    service.check()
    missing = job_request.missing(Vertex.of(request.plan.target), request.plan.job.resources, request.plan.root)
    if missing:
        raise InputError(missing)
    try:
        client.session(request.url)
    except client.VertexRejectedError as error:
        raise InputError(str(error)) from error
    root, options = request.plan.root, Vertex.of(request.plan.target)
    about = check_root(root, retry=INTERACTIVE)
    locations.store(root, about, os.environ, SystemClock().now())
    findings = online_checks.root_bucket(root, about, options, emulator=service.stand_in()) if about else []
    wrong = [finding.message for finding in findings if finding.level == "error"]
    if wrong:
        raise InputError(wrong)
    if Vertex.of(request.plan.target).raw:
        client.check_body(request.body)


def start(request: Request) -> None:
    plan, clock = request.plan, SystemClock()
    number = known_resumes(plan.paths) + 1
    archives, store = upload_archives(plan), GcsStore(plan.url.partition("://")[2], retry=SYNC_RETRY, clock=clock)
    _replace_lost(plan, number - 1, store, clock)
    if plan.keeper is not None:
        try:
            keeper.ensure(plan, number, store, (archives.runtime, archives.entrypoint), clock)
        except JobNotCreatedError as error:
            # A lost request may have made a keeper all the same, which would create the job.
            create_job.write_tombstone(store, number)
            create_job.write_rejection(store, number, clock.now(), error)
            raise
    try:
        creation(plan, number, clock, archives).ensure()
    except JobNotCreatedError as error:
        create_job.write_rejection(store, number, clock.now(), error)
        raise PodliftError(
            f"The run {plan.run_id} was not started. {error} Next: podlift resume {shlex.quote(plan.url)} tries again."
        ) from error


def _replace_lost(plan: Plan, number: int, store: GcsStore, clock: Clock) -> None:
    """Prevent the job before a resume if it counts as lost: a process that waits may be about to create it, or just has."""
    source = source_of("supervisor", number - 1)
    if number < 1 or any(event.source == source for event in read_events(plan.paths, ("final",))):
        return
    job = create_job.write_tombstone(store, number)
    if job.name:
        client.JobClient(str(Vertex.of(plan.target).project), clock=clock).cancel(job.name)


def creation(
    plan: Plan,
    number: int,
    clock: Clock,
    archives: Archives,
    *,
    location: int = 0,
    timeout_s: float | None = None,
) -> JobCreation:
    """Upload the files of a job's containers, and return its creation.

    Args:
        plan: the plan of the run.
        number: the number of the job within the run, from 1.
        clock: what time it is.
        archives: the archives that every container starts with.
        location: the first location to ask, in the order of the plan's locations.
        timeout_s: the time limit of the job; None for the plan's limit.
    """
    store = GcsStore(plan.url.partition("://")[2], retry=SYNC_RETRY, clock=clock)
    jobs = client.JobClient(str(Vertex.of(plan.target).project), clock=clock)
    if timeout_s is not None:
        # Without a check, which a keeper has no library for.
        plan = replace(plan, job=changed(plan.job, limits=changed(plan.job.limits, timeout_s=timeout_s)))
    files = BucketFiles(plan.url, retry=SYNC_RETRY, clock=clock)
    return JobCreation(_job_request(plan, number, store, clock, archives, location), store, jobs, clock, files.age_s)


def _job_request(plan: Plan, number: int, store: GcsStore, clock: Clock, archives: Archives, first: int) -> JobRequest:
    """Upload the job's files, and return its requests, one for each location from `first` on."""
    locations = dict(list(enumerate(Vertex.of(plan.target).locations_for(plan.job.resources)))[first:])
    digests = _upload(plan, number, store, clock, locations, archives.runtime)
    # Values copied from the caller's environment are part of the request, but are never stored.
    values = {name: os.environ[name] for name in plan.job.copied if name in os.environ}
    about: dict[str, Any] = {
        "number": number,
        "entrypoint": archives.entrypoint,
        "bucket_region": _bucket_region(plan, locations),
    }
    requests = []
    for index, location in locations.items():
        about |= {"location": location, "spec_digest": digests[index]}
        redacted, body = (_labelled(job_request.render(plan, **about, copied=copied), index) for copied in ({}, values))
        requests.append(
            LocatedRequest(
                location=index,
                region=location.region,
                redacted_body=redacted,
                body=body,
                provisioning=str(location.provisioning),
            )
        )
    return JobRequest(run_id=plan.run_id, number=number, requests=requests)


def _bucket_region(plan: Plan, locations: Mapping[int, Location]) -> str:
    """Return the region of the root's bucket if that matters and is known, else ""."""
    if len({location.region for location in locations.values()} | {Vertex.of(plan.target).region_names[0]}) == 1:
        return ""
    about = BucketFiles(plan.root, retry=INTERACTIVE).bucket_info()
    return str(about.get("location", "")).lower() if about.get("locationType") == _REGIONAL else ""


def _labelled(body: dict[str, Any], location: int) -> dict[str, Any]:
    return {**body, "labels": {**(body.get("labels") or {}), create_job.LOCATION: str(location)}} if location else body


def _upload(
    plan: Plan, number: int, store: GcsStore, clock: Clock, locations: Mapping[int, Location], runtime: str
) -> dict[int, str]:
    """Upload records and launch specs, and return the sha256 of each location's launch spec."""
    resumes = {"resumes_by_users": last_resume(read_events(plan.paths, ("resumed",)))}

    def create(index: int) -> str:
        spec = {**job_request.launch_spec(plan, number, runtime, locations[index]), **resumes}
        return create_spec(store, create_job.KEYS.launch_spec(number, index), spec)

    upload_requests(plan, clock)
    return dict(zip(locations, in_parallel(create, locations), strict=True))
