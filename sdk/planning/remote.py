"""Runs below a root in a bucket: how they are published, attached and adopted."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from pathlib import Path

from .. import ids
from ..clock import SystemClock
from ..errors import CorruptRunError, MissingError, RunNotFoundError, StoreError
from ..job.layout import RootPaths, RunPaths
from ..job.plan import Plan
from ..records.plans import read_plan
from ..records.recorder import is_owned
from ..records.sync import push
from ..records.sync.index import FILES_RETRY, KEYS, PROGRAM_FOLDERS, SyncedRun
from ..storage import posix
from ..storage.checksums import sha256
from ..storage.registry import open_files
from .roots import asked_here, in_cloud_storage, local_folder, on_emulator, share


def publish(plan: Plan) -> None:
    """Upload the plan and the bundle of a new run. If that fails, the run is removed here too."""
    share(plan.root)
    try:
        push.upload_archive(plan.bundle, RootPaths(plan.root).bundle(plan.code.digest))
        # The plan comes last: its existence creates the run.
        SyncedRun(plan.paths, plan.url, SystemClock()).create(KEYS.plan)
    except StoreError:
        shutil.rmtree(plan.paths.url, ignore_errors=True)
        raise
    if plan.capabilities.supervised_here:
        posix.put_new(plan.paths.owner(0), b"")


def attach(url: str, environ: Mapping[str, str]) -> Plan:
    """Return the plan of a run in a bucket (gs://BUCKET/PREFIX/runs/ID), after downloading its records."""
    root, run_id = RunPaths(url).root, RunPaths(url).run_id
    if not ids.is_run_id(run_id) or RootPaths(root).run(run_id).url != url:
        raise RunNotFoundError(
            f"This is not the directory of a run. Received: {url!r}. Expected: gs://BUCKET/PREFIX/runs/ID, or file:///PATH/runs/ID."
        )
    paths = RootPaths(local_folder(root, environ)).run(run_id)
    copy = SyncedRun(paths, url, SystemClock())
    try:
        copy.pull_plan()
    except MissingError:
        raise RunNotFoundError(
            f"No such run{on_emulator(environ) if in_cloud_storage(url) else ''}. Received: {url!r}. Next: podlift list --root "
            f"{shlex.quote(root)}."
        ) from None
    # The root may have another name since, for example if the bucket was copied.
    plan = asked_here(read_plan(paths, root), "run", environ)
    if plan.run_id != run_id:
        raise CorruptRunError(f"{url!r} contains the run {plan.run_id!r}: a run's directory has its name.")
    # For a run of this machine, the bucket is only checked for resumes on other machines.
    with suppress(StoreError) if is_owned(paths) else nullcontext():
        copy.pull_resumes()
        return asked_here(read_plan(paths, root), "run", environ)
    return plan


def adopt(plan: Plan, resumes: int, record: str) -> bool:
    """Make this machine the supervisor of a run that is resumed here, with this record. False if another process was faster."""
    copy = SyncedRun(plan.paths, plan.url, SystemClock())
    if Path(plan.bundle).exists():
        push.upload_archive(plan.bundle, RootPaths(plan.root).bundle(plan.code.digest))
    for name in posix.list_names(os.path.dirname(plan.paths.revision(""))):
        copy.upload(f"plans/{name}")
    here = plan.capabilities.supervised_here
    if here and not is_owned(plan.paths):
        # The program may continue from files in its folders.
        copy.download(PROGRAM_FOLDERS)
        # A supervisor that was killed before its first record has used its number.
        for key in copy.listed("attempts/"):
            Path(plan.paths.url, *Path(key).parts[:2]).mkdir(parents=True, exist_ok=True)
    try:
        if not copy.upload(f"{KEYS.events}/{record}"):
            return False
        # Removing a run deletes its plan first and then searches for this record: one of the two sees the other.
        copy.store.stat(KEYS.plan)
    except MissingError:
        raise RunNotFoundError(f"The run {plan.url!r} is being removed by another process (podlift remove).") from None
    if here:
        with suppress(FileExistsError):
            posix.put_new(plan.paths.owner(resumes), b"")
    return True


def fetch_code(plan: Plan) -> None:
    """Download the bundle of a run, if the bucket has it and it is not here undamaged."""
    folder, _, name = RootPaths(plan.root).bundle(plan.code.digest).rpartition("/")
    with suppress(FileNotFoundError):
        if sha256(plan.bundle) == plan.code.digest:
            return
    with suppress(MissingError):
        open_files(folder, retry=FILES_RETRY).download(name, plan.bundle)
