"""The protocol of one save, step by step, as the background thread runs it."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from ..errors import (
    ConflictError,
    CorruptCheckpointError,
    CorruptObjectError,
    InputError,
    MissingError,
    StoreError,
    nearest,
)
from ..storage.store import Stat, Store
from . import names
from .contents import OBJECT_BYTES, Contents, TaskObjects, decode_receipt, encode_receipt, put, write
from .manifest import REASONS, Manifest, decode, encode
from .opening import OpenStore, check_lease
from .retention import Retention, delete_folder

_POLL_S = 0.02
_TRIES = 3


@dataclass(frozen=True, kw_only=True)
class SaveLimits:
    receipts_s: float = 120.0  # how long rank 0 waits for the other tasks
    object_bytes: int = OBJECT_BYTES


@dataclass(frozen=True, kw_only=True)
class SaveRequest:
    """One requested save."""

    checkpoint_id: names.CheckpointId
    contents: Contents
    position: Any
    reason: str
    metrics: Mapping[str, float]
    downgrades: tuple[str, ...]
    keep: bool
    ranks: int = 1  # the tasks that write a part, from the first one on

    def checked(self, last_step: int) -> SaveRequest:
        """Return it with copies of everything that the program could change later, or raise InputError."""
        problems = []
        step = self.checkpoint_id.step
        if type(step) is not int or step < 0:
            raise InputError(f"The step of a checkpoint must be an integer of at least 0. Received: {step!r}.")
        if step < last_step:
            problems.append(f"The steps of checkpoints must not decrease. Received: {step}, after {last_step}.")
        if self.reason not in REASONS:
            hint = nearest(self.reason, REASONS)
            problems.append(f"Unknown reason for a checkpoint. Received: {self.reason!r}. {hint}")
        position, metrics = None, dict[str, float]()
        try:
            position = json.loads(json.dumps(self.position, allow_nan=False))
        except (ValueError, TypeError, RecursionError) as error:
            problems.append(f"The position of a checkpoint must be JSON: {error}.")
        try:
            metrics = {str(name): float(value) for name, value in self.metrics.items()}
        except (ValueError, TypeError) as error:
            problems.append(f"The metrics of a checkpoint must be numbers: {error}.")
        if problems:
            raise InputError(problems)
        return replace(self, position=position, metrics=metrics)


def save(opened: OpenStore, request: SaveRequest, retention: Retention, pool: Executor, limits: SaveLimits) -> str:
    """Run the protocol, and return the commit's key; when this returns on rank 0, the checkpoint is acknowledged."""
    store, opening, clock, rank = opened.store, opened.opening, opened.env.clock, opened.info.rank
    folder = names.folder(request.checkpoint_id, opening.nonce)
    started = clock.monotonic()
    try:
        written = write(store, pool, request.contents, folder, rank, limits.object_bytes)
        if rank:
            receipt = encode_receipt(request.checkpoint_id, opening.nonce, rank, written)
            put(store, names.receipt(folder, rank), [memoryview(receipt)])
            return names.commit(request.checkpoint_id)
        packed = clock.monotonic()
        others = range(1, request.ranks)
        parts = [written, *(_receipt(opened, request, other, limits.receipts_s) for other in others)]
        timings = {"write_s": packed - started, "receipts_s": clock.monotonic() - packed}
        manifest = _manifest(opened, request, retention, parts, timings)
        check_lease(store, opening)
    except BaseException:
        # These bytes can no longer be committed, and a full disk must not stay full.
        if rank == 0:
            _remove(store, folder)
        raise
    stat = _commit(store, manifest, folder)
    retention.committed(manifest, stat)
    return manifest.key


def _remove(store: Store, folder: str) -> None:
    with suppress(StoreError):
        delete_folder(store, folder)


def _receipt(opened: OpenStore, request: SaveRequest, rank: int, wait_s: float) -> TaskObjects:
    clock, nonce = opened.env.clock, opened.opening.nonce
    until = clock.monotonic() + wait_s
    key = names.receipt(names.folder(request.checkpoint_id, nonce), rank)
    while True:
        try:
            return decode_receipt(opened.store.get(key), request.checkpoint_id, nonce, rank)
        except MissingError:
            if clock.monotonic() >= until:
                raise StoreError(
                    f"{opened.info.tasks[rank]} did not write its part within {wait_s:.0f} s: {key} is missing. "
                    "Next: see its log; every task must save at the same step."
                ) from None
            clock.sleep(_POLL_S)


def _manifest(
    opened: OpenStore,
    request: SaveRequest,
    retention: Retention,
    parts: list[TaskObjects],
    timings: Mapping[str, float],
) -> Manifest:
    files = tuple(file for part in parts for file in part.files)
    manifest = Manifest(
        run_id=opened.info.run_id,
        **request.checkpoint_id._asdict(),
        # Distinguishes this manifest from one that another writer created under the same name.
        nonce=secrets.token_hex(8),
        parent=retention.parent,
        created_at=opened.env.clock.now(),
        reason=request.reason,
        position=request.position,
        files=files,
        arrays=parts[0].arrays,
        blobs=tuple(blob for part in parts for blob in part.blobs),
        ranks=len(opened.info.tasks),
        **vars(opened.about),
        metrics=request.metrics,
        keep=request.keep,
        total_bytes=sum(file.size for file in files),
        timings=timings,
        downgrades=request.downgrades,
    )
    best = retention.best_with(manifest)
    return replace(manifest, best=best) if best else manifest


def _commit(store: Store, manifest: Manifest, folder: str) -> Stat:
    """Create the manifest. The existing object decides whether it was created, never a status."""
    data = encode(manifest)
    for tries_left in reversed(range(_TRIES)):
        try:
            return put(store, manifest.key, [memoryview(data)])
        except CorruptObjectError:
            # It exists with other bytes, so no reader will accept it as a checkpoint.
            raise
        except StoreError as error:
            stat = _find_commit(store, manifest, error)
            if stat is not None:
                return stat
            if not tries_left:
                _remove(store, folder)
                raise
    raise StoreError(f"{manifest.key} could not be written.")


def _find_commit(store: Store, manifest: Manifest, error: StoreError) -> Stat | None:
    try:
        stat = store.stat(manifest.key)
        nonce = decode(store.get(manifest.key, generation=stat.generation)).nonce
    except MissingError:
        return None
    except (CorruptCheckpointError, CorruptObjectError):
        nonce = ""
    except StoreError as second:
        raise StoreError(
            f"It is unknown whether {manifest.key} was committed: {error} Then: {second} The next attempt will find out."
        ) from error
    if nonce != manifest.nonce:
        raise ConflictError(f"{manifest.key} of {store.url} was written by another process.") from error
    return stat
