"""The checkpoints of a run as users refer to them: the newest one, the one of step 120, one of another run."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from ..errors import InputError, PodliftError, RunNotFoundError
from ..records.plans import read_plan
from ..spec.layout import RunPaths
from ..storage.gcs.store import GcsStore
from ..storage.registry import open_store
from ..storage.retry import RetryPolicy
from ..storage.store import Store
from . import catalog, restore
from .catalog import CheckpointInfo

_LISTED = 10
_RETRY = RetryPolicy(connect_s=5.0, read_s=10.0, total_s=15.0, first_s=15.0)


def newest(paths: RunPaths) -> tuple[int, float] | None:
    """Return the step and the unix time of the last checkpoint of a run; None if there is none, or none is readable."""
    if not _may_hold(paths.store):
        return None
    try:
        store = _open(paths.store)
        commits = restore.commits_of(store)
        manifest = restore.read_manifest(store, commits[-1].key, paths.run_id) if commits else None
    except PodliftError:
        return None  # `entries` raises the error
    return None if manifest is None else (manifest.step, manifest.created_at)


def entries(paths: RunPaths, run_id: str | None = None) -> list[CheckpointInfo]:
    """Return all checkpoints of a run, oldest first; `run_id` is needed if the directory may have another name."""
    run_id = paths.run_id if run_id is None else run_id
    return catalog.list_checkpoints(_open(paths.store), run_id) if _may_hold(paths.store) else []


def is_empty(paths: RunPaths) -> bool:
    """Return whether a run has no checkpoints, damaged ones included."""
    return not _may_hold(paths.store) or not restore.commits_of(_open(paths.store))


def _may_hold(store: str) -> bool:
    return "://" in store or os.path.isdir(store)


def _open(store: str) -> Store:
    # Queries fail sooner than a training, which may wait for minutes.
    return GcsStore(store.partition("://")[2], retry=_RETRY) if "://" in store else open_store(store)


def find(paths: RunPaths, step: str, run_id: str | None = None) -> CheckpointInfo:
    """Return the checkpoint of a step, or "last"; `run_id` as for `entries`."""
    found = entries(paths, run_id)
    fitting = [entry for entry in found if step == "last" or str(entry.step) == step]
    good = [entry for entry in fitting if entry.quarantined is None]
    if good:
        return good[-1]
    run = paths.run_id
    if fitting:
        raise InputError(f"The checkpoint of step {step} of {run} is not usable. {fitting[-1].quarantined}")
    steps = list(dict.fromkeys(str(entry.step) for entry in found))
    known = f"Known steps: {', '.join(steps[-_LISTED:])}." if steps else "It has no checkpoints."
    raise InputError(f"The run {run} has no such checkpoint. Received: {step!r}. {known}")


def warm_start(text: str, locate: Callable[[str], str]) -> str:
    """Return the checkpoint of a `resume_from` (RUN or RUN@STEP) as `STORE#COMMIT`; `locate` finds the run's directory."""
    run, _, step = text.partition("@") if not Path(text).is_dir() else (text, "", "")
    try:
        paths = RunPaths(locate(run))
    except InputError as error:
        raise type(error)(f"checkpoint_resume_from: {error}") from None
    if "://" in paths.url:
        return f"{paths.store}#{find(paths, step or 'last').key}"
    if not Path(paths.plan).is_file():
        raise RunNotFoundError(
            f"checkpoint_resume_from: no such run. Received: {text!r}. Looked at {paths.url!r}. Next: podlift runs."
        )
    # A copy of a run may be in a directory of any name.
    return f"{paths.store}#{find(paths, step or 'last', read_plan(paths).run_id).key}"
