"""Starts a run on Vertex AI: uploads what its containers need, and creates the job, once."""

from __future__ import annotations

import hashlib
import json
import os
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from ...checks import vertex_online
from ...clock import Clock, SystemClock
from ...errors import InputError, PodliftError
from ...packaging.runtime_archive import entrypoint_file, runtime_archive
from ...records.recorder import known_resumes
from ...records.sync import push
from ...records.sync.index import SYNC_RETRY, SyncedRun
from ...spec.layout import RootPaths
from ...spec.plan import Plan
from ...spec.policies import Vertex
from ...spec.values import changed
from ...status import Reason, State
from ...storage import cache, emulator, posix
from ...storage.gcs.files import INTERACTIVE, BucketFiles, check_root
from ...storage.gcs.store import GcsStore
from ...storage.store import create
from ..base import Request
from . import client, create_job, locations, service
from . import request as job_request
from .create_job import JobCreation, JobNotCreatedError, JobRequest
from .run import write_verdict

_REGIONAL = "region"


def check(request: Request) -> None:
    """Reject missing settings, an invalid patch, missing credentials and an unusable bucket."""
    service.check_emulator()
    missing = job_request.missing(Vertex.of(request.plan.target), request.plan.root)
    if missing:
        raise InputError(missing)
    try:
        client.session(request.url)
    except client.VertexRejectedError as error:
        raise InputError(str(error)) from error
    root, options = request.plan.root, Vertex.of(request.plan.target)
    about = check_root(root, retry=INTERACTIVE)
    locations.store(root, about, os.environ, SystemClock().now())
    found = vertex_online.place(root, about, options, emulator=emulator.asked()) if about else []
    elsewhere = [finding.message for finding in found if finding.level == "error"]
    if elsewhere:
        raise InputError(elsewhere)
    if Vertex.of(request.plan.target).raw:
        client.check_body(request.body)


def start(request: Request) -> None:
    plan, clock = request.plan, SystemClock()
    number = known_resumes(plan.paths) + 1
    store = GcsStore(plan.url.partition("://")[2], retry=SYNC_RETRY, clock=clock)
    created = create_job.read_created(store, number)
    if created is not None and created.name:
        return
    entrypoint, spec_digest = _upload(plan, number, store, clock)
    jobs = client.JobClient(str(Vertex.of(plan.target).project), clock=clock)
    try:
        JobCreation(_job_request(plan, number, entrypoint, spec_digest), store, jobs, clock).ensure()
    except JobNotCreatedError as error:
        state = State.CANCELLED if error.reason is Reason.CANCELLED else State.FAILED
        failure = {"task": "", "message": str(error), "traceback": "", "log": ""} if state is State.FAILED else None
        about = {"vendor": "", "job": "", "notes": list(error.notes)}
        data = {"state": state.value, "reason": error.reason.value, "failure": failure, **about}
        write_verdict(store, number, clock.now(), data)
        raise PodliftError(
            f"The run {plan.run_id} was not started. {error} Next: podlift resume {plan.url} tries again."
        ) from error


def _upload(plan: Plan, number: int, store: GcsStore, clock: Clock) -> tuple[str, str]:
    """Upload records, archives and the launch spec. Return the sha256 of the entrypoint and of the launch spec."""
    root = RootPaths(plan.root)
    archive = runtime_archive(cache.cache_folder(os.environ))
    entrypoint = entrypoint_file()
    copy = SyncedRun(plan.paths, plan.url, clock)
    records = [name for name in posix.list_names(plan.paths.events) if name.startswith("0000.client")]
    spec = json.dumps(job_request.launch_spec(plan, number, archive.digest), sort_keys=True).encode()
    key = create_job.KEYS.launch_spec(number)
    with ThreadPoolExecutor(4) as pool:
        ours = pool.submit(create, store, key, spec)
        others: list[Future[Any]] = [pool.submit(copy.upload, f"{create_job.KEYS.events}/{name}") for name in records]
        # Before the job is created: a removal by prune that runs now keeps them, or has removed them before.
        others.append(pool.submit(push.upload_archive, str(archive.path), root.runtime(archive.digest)))
        others.append(pool.submit(push.upload_archive, str(entrypoint.path), root.entrypoint(entrypoint.digest)))
        for each in others:
            each.result()
    # Another process may have written it before, and containers read that one.
    spec = spec if ours.result() else bytes(store.get(key))
    return entrypoint.digest, hashlib.sha256(spec).hexdigest()


def _job_request(plan: Plan, number: int, entrypoint: str, spec_digest: str) -> JobRequest:
    options = Vertex.of(plan.target)
    places = options.places_for(plan.job.resources)
    # One request fits every region with the same machines.
    alike = [place.region for place in places if changed(place, region="") == changed(places[0], region="")]
    # Values copied from the caller's environment are part of the request, but are never stored.
    values = {name: os.environ[name] for name in plan.job.copied if name in os.environ}
    return JobRequest(
        run_id=plan.run_id,
        number=number,
        regions=alike,
        redacted_body=job_request.render(plan, number=number, entrypoint=entrypoint, spec_digest=spec_digest),
        body=job_request.render(plan, number=number, entrypoint=entrypoint, spec_digest=spec_digest, copied=values),
        excluded=lambda region: _why_excluded(plan, region),
        provisioning=str(places[0].provisioning),
    )


def _why_excluded(plan: Plan, region: str) -> str:
    """Return why a run with this bucket cannot run in a region, or ""."""
    about = BucketFiles(plan.root, retry=INTERACTIVE).bucket_info()
    location = str(about.get("location", "")).lower()
    if about.get("locationType") == _REGIONAL and location and location != region:
        return f"the bucket is in {location}, but Vertex AI requires it in the job's region"
    return ""
