"""Starts a run on Kubernetes: writes the launch spec and the archives into the root, and creates the job, once."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from ...clock import SystemClock
from ...errors import InputError, MissingError, PodliftError, UnavailableError
from ...job.plan import Plan
from ...logs import logger
from ...records.events import last_resume
from ...records.recorder import known_resumes, read_events
from ...records.sync.index import KEYS, SYNC_RETRY
from ...storage.folder_files import in_folder, path_of
from ...storage.gcs.files import INTERACTIVE, check_root
from ...storage.registry import open_files
from .. import containers
from ..base import Request
from ..job_run import RejectedError, creating
from . import objects
from .client import Cluster, configured
from .options import Kubernetes

_log = logger("backends")


def check(request: Request) -> None:
    """Reject an unusable root, and a job that the cluster refuses: it checks the whole object, and creates nothing."""
    plan, target = request.plan, Kubernetes.of(request.plan.target)
    if problems := objects.missing(target, plan.root):
        raise InputError(problems)
    configured(target)
    if target.claim and not os.path.isdir(target.claim_folder):
        raise InputError(
            f"This machine does not see the volume of the claim {target.claim_name!r}: there is no folder "
            f"{target.claim_folder!r}. Next: mount it there, or --root gs://BUCKET/PREFIX."
        )
    if in_folder(plan.root):
        check_folder(path_of(plan.root))
    else:
        check_root(plan.root, retry=INTERACTIVE)
    cluster = Cluster(target)
    try:
        _check_claim(target.claim_name, len(plan.tasks), cluster)
        if target.queue:
            # Without Kueue, the job would start at once.
            missing = (
                f"There is no LocalQueue {target.queue!r} of Kueue in {cluster.name}. Next: kubectl get localqueues"
            )
            _read(cluster, "LocalQueue", target.queue, f"{missing}, or --kubernetes-queue.")
        job = _rehearsed(request.body, cluster)
        if names := objects.hidden_names(plan):
            cluster.create(secret(job, dict.fromkeys(names, containers.HIDDEN)), rehearsed=True)
    except (RejectedError, UnavailableError) as error:
        raise InputError(str(error)) from error


def _rehearsed(body: Mapping[str, Any], cluster: Cluster) -> Mapping[str, Any]:
    """Let the cluster check an object. A webhook that supports no dry run sees the real request only."""
    try:
        return cluster.create(body, rehearsed=True)
    except RejectedError as error:
        if "does not support dry run" not in str(error):
            raise
        _log.info(f"The cluster checks the job only when it is created. {error}")
        # A Secret needs an owner.
        return {**body, "metadata": {**body["metadata"], "uid": "0"}}


def _read(cluster: Cluster, kind: str, name: str, missing: str) -> Mapping[str, Any] | None:
    """Return an object, None without the right to read it; InputError with the text `missing` if it is not there."""
    try:
        return cluster.get(kind, name)
    except MissingError as error:
        raise InputError(missing) from error
    except RejectedError:
        return None


def _check_claim(name: str, count: int, cluster: Cluster) -> None:
    """Reject a claim that is not there, or that one node at a time can mount."""
    missing = (
        f"There is no claim {name!r} in {cluster.name}. Next: kubectl get pvc; or --kubernetes-claim CLAIM:FOLDER."
    )
    claim = _read(cluster, "PersistentVolumeClaim", name, missing) if name else None
    modes = ((claim or {}).get("spec") or {}).get("accessModes") or []
    if claim is not None and count > 1 and "ReadWriteMany" not in modes:
        raise InputError(
            f"The claim {name!r} can be mounted by one node at a time, and the run has {count} tasks. Received: "
            f"{', '.join(modes)}. Next: a claim for ReadWriteMany, or --root gs://BUCKET/PREFIX."
        )


def check_folder(folder: str) -> None:
    try:
        os.makedirs(folder, exist_ok=True)
        source = os.path.join(folder, f".podlift-{os.getpid()}")
        with open(source, "x") as file:
            file.write("x")
        try:
            # The records are objects that are created only if absent, by hard links.
            os.link(source, source + ".link")
            os.unlink(source + ".link")
        finally:
            os.unlink(source)
    except OSError as error:
        raise InputError(
            f"The root {folder!r} cannot hold runs: {error.strerror}. It needs a file system with hard links, such as NFS; a "
            "bucket that is mounted as a folder has none. Next: --root gs://BUCKET/PREFIX, or another volume."
        ) from error


def start(request: Request) -> None:
    plan, clock = request.plan, SystemClock()
    number = known_resumes(plan.paths) + 1
    body = written(plan, number)
    cluster = Cluster(Kubernetes.of(plan.target), clock=clock)
    with creating(plan, number, clock):
        job = cluster.create(body)
        if names := objects.hidden_names(plan):
            try:
                # The pods wait for it.
                cluster.create(secret(job, {name: os.environ.get(name, "") for name in names}))
            except RejectedError:
                with suppress(PodliftError):
                    cluster.delete(objects.kind_of(plan), body["metadata"]["name"])
                raise


def launch_spec(plan: Plan, number: int, runtime: str, resumes: int = 0) -> dict[str, object]:
    """Return the launch spec, which the agents of a job read.
    Args:
        plan: the plan.
        number: the number of the job.
        runtime: the sha256 of the runtime archive.
        resumes: the number of the last job before the last resume by a user.
    """
    terms = replace(objects.TERMS, tasks={str(index): task for index, task in enumerate(plan.tasks)})
    return {**containers.launch_spec(plan, number, runtime, terms), "resumes_by_users": resumes}


def written(plan: Plan, number: int) -> dict[str, Any]:
    """Write the archives and the launch spec of a job, and return the object that starts its agents."""
    archives, files = containers.upload_archives(plan), open_files(plan.url, retry=SYNC_RETRY)
    containers.upload_requests(plan, SystemClock())
    spec = launch_spec(plan, number, archives.runtime, last_resume(read_events(plan.paths, ("resumed",))))
    digest = containers.created_file(files, KEYS.launch_spec(number), spec)
    return objects.render(plan, number=number, entrypoint=archives.entrypoint, spec_digest=digest)


def secret(job: Mapping[str, Any], values: Mapping[str, str]) -> dict[str, Any]:
    """Return the Secret with the values of this shell; the cluster removes it together with the job."""
    metadata = job["metadata"]
    owner = {"apiVersion": job["apiVersion"], "kind": job["kind"], "name": metadata["name"], "uid": metadata["uid"]}
    about = {"name": metadata["name"], "labels": dict(metadata.get("labels") or {}), "ownerReferences": [owner]}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": about, "immutable": True, "stringData": dict(values)}
