"""The checkpoints of a store or a run as users name them: listed, verified, pinned; the newest, or the one of step 120."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ..errors import (
    CheckpointError,
    ConflictError,
    CorruptObjectError,
    FutureFormatError,
    InputError,
    MissingError,
    PodliftError,
    RunNotFoundError,
    nearest,
)
from ..job.layout import RunPaths
from ..job.policies import metric_and_mode
from ..records.plans import read_plan
from ..storage.registry import open_store
from ..storage.retry import RetryPolicy
from ..storage.store import Store, exists
from . import names, restore
from .envelope import wrap

_LISTED = 10
_RETRY = RetryPolicy(connect_s=5.0, read_s=10.0, total_s=15.0, first_s=15.0)
_PIN = re.compile(r"[a-z0-9]([a-z0-9_-]{0,39})")


@dataclass(frozen=True, kw_only=True)
class CheckpointInfo:
    """One checkpoint; `epoch` counts writing attempts, not passes over the data."""

    key: str  # its commit
    step: int
    epoch: int
    serial: int
    created_at: float | None = None  # unix time; None, like size and reason, if its manifest cannot be read
    size: int | None = None  # bytes
    reason: str | None = None  # one of manifest.REASONS
    pinned: tuple[str, ...] = ()  # names of its pins
    quarantined: str | None = None  # why it is not restored
    metrics: Mapping[str, float]
    downgrades: tuple[str, ...] = ()  # the parts of the training's state that it does not restore exactly


def list_checkpoints(store: Store, run_id: str = "") -> list[CheckpointInfo]:
    """Return all checkpoints by their manifests, oldest first. Checkpoints of other runs than `run_id` count as quarantined."""
    pinned = restore.pins(store)
    notes = {stat.key for stat in store.list(names.QUARANTINE)}
    checkpoints = []
    for stat in restore.commits_of(store):
        checkpoint_id = names.parse_commit(stat.key)
        if checkpoint_id is None:
            continue
        manifest, problem = None, None
        try:
            manifest = restore.read_manifest(store, stat.key, run_id)
        except MissingError:
            continue  # removed by retention since it was listed
        except (CheckpointError, CorruptObjectError, FutureFormatError) as error:
            problem = str(error)
        if names.note(stat.key) in notes:
            problem = restore.noted(store, stat.key) or problem or "it failed verification"
        checkpoints.append(
            CheckpointInfo(
                key=stat.key,
                step=checkpoint_id.step,
                epoch=checkpoint_id.epoch,
                serial=checkpoint_id.serial,
                created_at=manifest.created_at if manifest else None,
                size=manifest.total_bytes if manifest else None,
                reason=manifest.reason if manifest else None,
                pinned=tuple(sorted(name for name, key in pinned.items() if key == stat.key)),
                quarantined=problem,
                metrics=manifest.metrics if manifest else {},
                downgrades=manifest.downgrades if manifest else (),
            )
        )
    return checkpoints


def verify(store: Store, key: str, run_id: str = "") -> str | None:
    """Read all of one checkpoint; return its damage, or None. A good one leaves quarantine."""
    _check_exists(store, key)
    try:
        restore.verify(store, key, run_id)
    except (CheckpointError, FutureFormatError) as error:
        return str(error)
    with suppress(MissingError):
        store.delete(names.note(key))
    return None


def pin(store: Store, key: str, name: str) -> None:
    """Keep a checkpoint until it is unpinned; an existing pin of that name moves here."""
    if not _PIN.fullmatch(name):
        raise InputError(
            f"Invalid name of a pin. Received: {name!r}. Allowed: lowercase letters, digits, - and _, at most 40 characters."
        )
    _check_exists(store, key)
    while True:
        try:
            expected: str | None = store.stat(names.pin(name)).generation
        except MissingError:
            expected = None
        try:
            store.swap(names.pin(name), [wrap("pin", {"commit": key})], expected=expected)
            break
        except (ConflictError, MissingError):
            continue
    if not exists(store, key):
        raise InputError(f"The checkpoint {key!r} was removed by retention before it could be pinned.")


def unpin(store: Store, name: str) -> None:
    """Remove a pin; raises InputError if there is none of that name."""
    try:
        store.delete(names.pin(name) if _PIN.fullmatch(name) else names.pin("-"))
    except MissingError:
        pinned = sorted(restore.pins(store))
        hint = nearest(name, pinned) if pinned else "Nothing is pinned."
        raise InputError(f"There is no pin of that name. Received: {name!r}. {hint}") from None


def _check_exists(store: Store, key: str) -> None:
    commits = [stat.key for stat in restore.commits_of(store)]
    if key not in commits:
        hint = nearest(key, commits) if commits else "There are none."
        raise InputError(f"There is no such checkpoint in {store.url}. Received: {key!r}. {hint}")


# --- The checkpoints of a run ----------------------------------------------------------------------------------------


def newest(paths: RunPaths) -> tuple[int, float] | None:
    """Return the step and the unix time of the last checkpoint of a run; None if there is none, or none is readable."""
    try:
        store = _open(paths.store)
        commits = [] if store is None else restore.commits_of(store)
        if store is None or not commits:
            return None
        manifest = restore.read_manifest(store, commits[-1].key, paths.run_id)
    except PodliftError:
        return None  # `entries` raises the error
    return manifest.step, manifest.created_at


def entries(paths: RunPaths, run_id: str | None = None) -> list[CheckpointInfo]:
    """Return all checkpoints of a run, oldest first; `run_id` is needed if the directory may have another name."""
    store = _open(paths.store)
    return [] if store is None else list_checkpoints(store, paths.run_id if run_id is None else run_id)


def best_first(checkpoints: Sequence[CheckpointInfo], best: str) -> list[CheckpointInfo]:
    """Return the usable checkpoints that have a metric, the best one first; of equals, the older one."""
    name, mode = metric_and_mode(best)
    if mode not in ("min", "max") or not name:
        raise InputError(f"Invalid metric. Received: {best!r}. Expected: a metric's name, or min:NAME, or max:NAME.")
    usable = [entry for entry in checkpoints if entry.quarantined is None]
    ranked = [entry for entry in usable if math.isfinite(entry.metrics.get(name, math.nan))]
    if usable and not ranked:
        metrics = sorted({metric for entry in usable for metric in entry.metrics})
        hint = nearest(name, metrics) if metrics else "They have no metrics."
        raise InputError(
            f"None of the {len(usable)} checkpoints has this metric. Received: {best!r}. {hint} Next: a run with "
            f"checkpoint_best={best!r} (--checkpoint-best) saves it with every epoch of fit, and ckpt.save(metrics) in a loop."
        )
    sign = 1 if mode == "min" else -1
    return sorted(ranked, key=lambda entry: sign * entry.metrics[name])


def is_empty(paths: RunPaths) -> bool:
    """Return whether a run has no checkpoints, damaged ones included."""
    store = _open(paths.store)
    return store is None or not restore.commits_of(store)


def _open(url: str) -> Store | None:
    """Return a run's store; None if there is no such folder."""
    if "://" in url:
        # Queries fail sooner than a training, which may wait for minutes.
        return open_store(url, retry=_RETRY)
    return open_store(url) if os.path.isdir(url) else None


def read(paths: RunPaths, key: str) -> restore.Checkpoint:
    """Return a checkpoint of a run, verified and in memory."""
    store = _open(paths.store)
    if store is None:
        raise InputError(f"The run {paths.run_id} has no checkpoints.")
    _check_exists(store, key)
    return restore.read(store, key, paths.run_id)


def find(paths: RunPaths, step: str, run_id: str | None = None) -> CheckpointInfo:
    """Return the checkpoint of a step, or "last"; `run_id` as for `entries`."""
    checkpoints = entries(paths, run_id)
    fitting = [entry for entry in checkpoints if step == "last" or str(entry.step) == step]
    good = [entry for entry in fitting if entry.quarantined is None]
    if good:
        return good[-1]
    run = paths.run_id
    if fitting:
        raise InputError(f"The checkpoint of step {step} of {run} is not usable. {fitting[-1].quarantined}")
    steps = list(dict.fromkeys(str(entry.step) for entry in checkpoints))
    hint = f"Known steps: {', '.join(steps[-_LISTED:])}." if steps else "It has no checkpoints."
    raise InputError(f"The run {run} has no such checkpoint. Received: {step!r}. {hint}")


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
            f"checkpoint_resume_from: no such run. Received: {text!r}. Looked at {paths.url!r}. Next: podlift list."
        )
    # A copy of a run may be in a directory of any name.
    return f"{paths.store}#{find(paths, step or 'last', read_plan(paths).run_id).key}"
