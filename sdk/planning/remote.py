"""Runs below a root in a bucket, from this machine: where their files lie here, and what is done once for each."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from .. import backends, ids
from ..backends.local import remote, uploader
from ..clock import SystemClock
from ..errors import CorruptRunError, InputError, MissingError, RunNotFoundError, StoreError
from ..records.plans import read_plan
from ..records.sync import push
from ..records.sync.pull import Copy
from ..spec.layout import RootPaths, RunPaths
from ..spec.plan import Plan
from ..storage import cache, posix
from ..storage.gcs.files import INTERACTIVE, BucketFiles
from .roots import in_bucket

_THREADS = 16
_T = TypeVar("_T")


def placed(plan: Plan, environ: Mapping[str, str]) -> Plan:
    """Return a plan that knows where its files lie on this machine: one that was written down does not."""
    return replace(plan, local=cache.bucket_folder(_cache(environ), plan.root)) if in_bucket(plan.root) else plan


def _cache(environ: Mapping[str, str]) -> Path:
    try:
        return cache.cache_folder(environ)
    except RuntimeError:
        raise InputError(
            "A root in a bucket needs a cache folder, and nobody's home is known. Set XDG_CACHE_HOME."
        ) from None


def publish(plan: Plan) -> None:
    """Bring the plan and the code of a new run to the bucket; where that fails, there is no such run here either.

    Raises:
        AlreadyExistsError: there is such a run.
        StoreError: the bucket refuses.
    """
    try:
        push.publish(plan.paths, plan.url, plan.bundle, RootPaths(plan.root).bundle(plan.digest))
    except StoreError:
        shutil.rmtree(plan.paths.url, ignore_errors=True)
        raise
    if plan.backend not in backends.IN_CLOUD:
        posix.put_new(plan.paths.owner(0), b"")


def attach(url: str, environ: Mapping[str, str]) -> Plan:
    """Return the plan of a run in a bucket, of which this machine has the records then.

    Args:
        url: gs://BUCKET/PREFIX/runs/ID.
        environ: this process's variables.

    Raises:
        RunNotFoundError: there is none.
        CorruptRunError: what is there is not podlift's.
    """
    root, run_id = RunPaths(url).root, RunPaths(url).run_id
    if not ids.is_run_id(run_id) or RootPaths(root).run(run_id).url != url:
        raise RunNotFoundError(f"This is no run's directory. Received: {url!r}. Expected: gs://BUCKET/PREFIX/runs/ID.")
    paths = RootPaths(cache.bucket_folder(_cache(environ), root)).run(run_id)
    copy = Copy(paths, url, SystemClock())
    try:
        copy.plan()
    except MissingError:
        raise RunNotFoundError(f"No such run. Received: {url!r}. Next: podlift runs --root {root}.") from None
    found = read_plan(paths)
    if found.run_id != run_id:
        raise CorruptRunError(f"{url!r} holds the run {found.run_id!r}: a run's directory must be named after the run.")
    # A root may be called by another name since, as that of a bucket that was copied.
    found = replace(found, root=root, local=paths.root)
    if not remote.is_own(found):
        return _newest(found, copy)
    # Of a run of this machine the bucket is asked only whether it was resumed elsewhere.
    with suppress(StoreError):
        found = _newest(found, copy)
    if remote.is_own(found) and not uploader.is_carried(paths) and not uploader.is_at_work(paths):
        uploader.start(found)
    return found


def _newest(plan: Plan, copy: Copy) -> Plan:
    copy.resumes()
    return replace(read_plan(plan.paths), root=plan.root, local=plan.local)


def adopt(plan: Plan, resumes: int, record: str) -> bool:
    """Make this machine the one that looks after a run, which somebody resumes here; false if somebody was faster.

    Args:
        plan: the run, with the plan that it goes on with.
        resumes: how often it was resumed, this time included.
        record: the name of the record that says so.

    Raises:
        RunNotFoundError: somebody removes the run at this moment.
    """
    copy = Copy(plan.paths, plan.url, SystemClock())
    bundle_url = RootPaths(plan.root).bundle(plan.digest)
    if Path(plan.bundle).exists():
        push.bring_bundle(plan.bundle, bundle_url)
    for name in posix.list_names(os.path.dirname(plan.paths.revision(""))):
        copy.bring(f"plans/{name}")
    in_cloud = plan.backend in backends.IN_CLOUD
    if not remote.is_own(plan) and not in_cloud:
        # A program may go on from what it has left in its folders.
        copy.files(push.LEFT)
    try:
        if not copy.claim(record):
            return False
    except MissingError:
        raise RunNotFoundError(f"The run {plan.url!r} is being removed by somebody else: podlift prune.") from None
    if not in_cloud:
        with suppress(FileExistsError):
            posix.put_new(plan.paths.owner(resumes), b"")
    return True


def fetch_code(plan: Plan) -> None:
    """Bring the code of a run to this machine, if the bucket has it."""
    with suppress(MissingError):
        push.fetch_bundle(RootPaths(plan.root).bundle(plan.digest), plan.bundle)


def runs(root: str, limit: int | None) -> list[str]:
    """Return the URLs of the newest runs below a root in a bucket, the newest first."""
    made = BucketFiles(root, retry=INTERACTIVE).matching("runs/*/plan.json")
    newest = sorted(made, key=lambda name: made[name], reverse=True)[:limit]
    return [f"{root}/{name.rpartition('/')[0]}" for name in newest]


def each(urls: Sequence[str], look: Callable[[str], _T]) -> list[_T]:
    """Return what is found out about each; they are looked at at the same time."""
    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(look, urls))
