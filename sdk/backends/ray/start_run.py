"""Starts a run on a Ray cluster: writes the files of its driver and its agents, and creates the job, once."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict
from typing import cast

from ...clock import SystemClock
from ...errors import InputError
from ...job.layout import RootPaths
from ...job.plan import Plan
from ...records.events import last_resume
from ...records.recorder import known_resumes, read_events
from ...records.sync.index import KEYS, SYNC_RETRY
from ...storage.folder_files import in_folder, path_of
from ...storage.gcs.files import INTERACTIVE, check_root
from ...storage.registry import open_files
from .. import containers
from ..base import Request
from ..containers import bucket_of, key_of
from ..job_run import creating
from . import request as job_request
from .client import RayJobs
from .options import Ray


def check(request: Request) -> None:
    """Reject a missing or unusable root, a cluster that does not answer, and a server that is not a cluster."""
    plan = request.plan
    if missing := job_request.missing(plan.root):
        raise InputError(missing)
    if in_folder(plan.root):
        _check_folder(path_of(plan.root))
    else:
        check_root(plan.root, retry=INTERACTIVE)
    RayJobs(Ray.of(plan.target)).version()


def _check_folder(folder: str) -> None:
    try:
        os.makedirs(folder, exist_ok=True)
        writable = os.access(folder, os.W_OK | os.X_OK)
    except OSError as error:
        raise InputError(
            f"The root cannot be created: {error}. Next: --root with a folder that all nodes see."
        ) from error
    if not writable:
        raise InputError(f"The root is not writable: no permission for {folder!r}. Next: use another root (--root).")


def start(request: Request) -> None:
    plan, clock = request.plan, SystemClock()
    number = known_resumes(plan.paths) + 1
    body = _written(plan, number)
    with creating(plan, number, clock):
        RayJobs(Ray.of(plan.target), clock=clock).create(body)


def _written(plan: Plan, number: int) -> Mapping[str, object]:
    """Write the specs of the driver and the agents of a job, and return the body of the request that creates it."""
    archives, files = containers.upload_archives(plan), open_files(plan.url, retry=SYNC_RETRY)
    containers.upload_requests(plan, SystemClock())
    resumes = {"resumes_by_users": last_resume(read_events(plan.paths, ("resumed",)))}
    terms = job_request.TERMS
    agents = {**containers.launch_spec(plan, number, archives.runtime, terms), **resumes}
    digest = containers.created_file(files, KEYS.launch_spec(number), agents)
    rendered = job_request.render(plan, number=number)
    driver = _driver_spec(plan, number, archives, rendered, digest)
    digest = containers.created_file(files, KEYS.driver_spec(number), {**driver, **resumes})
    # Values copied from the caller's environment are part of the request, but are never stored.
    copied = [*plan.job.copied, *job_request.emulators(plan)]
    values = {name: os.environ.get(name, "") for name in copied}
    about = {"entrypoint": archives.entrypoint, "spec_digest": digest}
    body = job_request.render(plan, number=number, **about, copied=values)
    return cast("Mapping[str, object]", body["job"])


def _driver_spec(
    plan: Plan, number: int, archives: containers.Archives, body: Mapping[str, object], agents: str
) -> dict[str, object]:
    """Return the program that the entrypoint starts, and its `DriverSpec`; `agents` is the sha256 of their launch spec."""
    root = RootPaths(plan.root)
    entry, spec = root.entrypoint(archives.entrypoint), root.run(plan.run_id).launch_spec(number)
    return {
        "version": 1,
        "main": "sdk.backends.ray.driver",
        "python": list(containers.PYTHON_RANGE),
        "runtime": {"key": key_of(root.runtime(archives.runtime)), "sha256": archives.runtime},
        "run": plan.url,
        "run_id": plan.run_id,
        "job": number,
        "tasks": list(plan.tasks),
        "agent": [bucket_of(plan.root), key_of(entry), archives.entrypoint, key_of(spec), agents],
        "placement": body["placement"],
        "env": body["env"],
        "limits": asdict(plan.job.limits),
        "shared": in_folder(plan.root),
        "model": plan.model,
    }
