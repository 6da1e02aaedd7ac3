"""The protocol of one save, step by step, as the background thread runs it."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from ..clock import Clock
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
from .contents import Contents, ObjectWriter, TaskObjects, decode_receipt, encode_receipt, put
from .lease import check
from .manifest import REASONS, Manifest, decode, encode
from .opening import Opening
from .retention import Retention, delete_folder

_POLL_S = 0.02
_TRIES = 3


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

    def checked(self, last_step: int) -> SaveRequest:
        """Return it with copies of everything that the program could change later, or raise InputError."""
        problems = []
        step = self.checkpoint_id.step
        if isinstance(step, bool) or not isinstance(step, int) or step < 0:
            raise InputError(f"The step of a checkpoint must be an integer of at least 0. Received: {step!r}.")
        if step < last_step:
            problems.append(f"The steps of checkpoints must not decrease. Received: {step}, after {last_step}.")
        if self.reason not in REASONS:
            problems.append(
                f"Unknown reason for a checkpoint. Received: {self.reason!r}. {nearest(self.reason, REASONS)}"
            )
        position = metrics = None
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
        return replace(self, position=position, metrics=metrics or {})


class CommitProtocol:
    """Runs one task's saves through the protocol. `max_pending` bounds the objects that are queued or in flight."""

    def __init__(
        self,
        store: Store,
        opening: Opening,
        *,
        rank: int,
        tasks: tuple[str, ...],
        retention: Retention,
        clock: Clock,
        about: Mapping[str, Any],
        receipts_s: float,
        pool: Executor,
        max_pending: int,
        object_bytes: int,
    ) -> None:
        self._store = store
        self._opening = opening
        self._rank = rank
        self._tasks = tasks
        self._retention = retention
        self._clock = clock
        self._about = about
        self._receipts_s = receipts_s
        self._writer = ObjectWriter(store, pool, max_pending=max_pending, object_bytes=object_bytes)
        self._parent = opening.commit

    def save(self, save: SaveRequest) -> str:
        """Save, and return the commit's key; when this returns on rank 0, the checkpoint is acknowledged."""
        folder = names.folder(save.checkpoint_id, self._opening.nonce)
        started = self._clock.monotonic()
        try:
            written = self._writer.write(save.contents, folder, self._rank)
            if self._rank:
                receipt = encode_receipt(save.checkpoint_id, self._opening.nonce, self._rank, written)
                put(self._store, names.receipt(folder, self._rank), [memoryview(receipt)])
                return names.commit(save.checkpoint_id)
            packed = self._clock.monotonic()
            parts = [written, *(self._receipt(save, folder, rank) for rank in range(1, len(self._tasks)))]
            timings = {"write_s": packed - started, "receipts_s": self._clock.monotonic() - packed}
            manifest = self._manifest(save, parts, timings)
            check(self._store, self._opening.lease())
        except BaseException:
            # These bytes can no longer be committed, and a full disk must not stay full.
            self._remove(folder)
            raise
        stat = self._commit(manifest)
        self._parent = manifest.key
        self._retention.committed(manifest, stat)
        return manifest.key

    def _remove(self, folder: str) -> None:
        if self._rank == 0:
            with suppress(StoreError):
                delete_folder(self._store, folder)

    def _receipt(self, save: SaveRequest, folder: str, rank: int) -> TaskObjects:
        until = self._clock.monotonic() + self._receipts_s
        key = names.receipt(folder, rank)
        while True:
            try:
                return decode_receipt(self._store.get(key), save.checkpoint_id, self._opening.nonce, rank)
            except MissingError:
                if self._clock.monotonic() >= until:
                    raise StoreError(
                        f"{self._tasks[rank]} did not write its part within {self._receipts_s:.0f} s: {key} is missing. "
                        "Next: see its log; every task must save at the same step."
                    ) from None
                self._clock.sleep(_POLL_S)

    def _manifest(self, save: SaveRequest, parts: list[TaskObjects], timings: Mapping[str, float]) -> Manifest:
        files = tuple(file for part in parts for file in part.files)
        manifest = Manifest(
            run_id=str(self._about.get("run_id", "")),
            epoch=save.checkpoint_id.epoch,
            step=save.checkpoint_id.step,
            serial=save.checkpoint_id.serial,
            # Distinguishes this manifest from one that another writer created under the same name.
            nonce=secrets.token_hex(8),
            parent=self._parent,
            created_at=self._clock.now(),
            reason=save.reason,
            position=save.position,
            files=files,
            arrays=parts[0].arrays,
            blobs=tuple(blob for part in parts for blob in part.blobs),
            ranks=len(self._tasks),
            world=self._about.get("world", {}),
            versions=self._about.get("versions", {}),
            code=self._about.get("code", {}),
            metrics=save.metrics,
            keep=save.keep,
            total_bytes=sum(file.size for file in files),
            timings=timings,
            downgrades=save.downgrades,
        )
        best = self._retention.best_with(manifest)
        return replace(manifest, best=best) if best else manifest

    def _commit(self, manifest: Manifest) -> Stat:
        """Create the manifest. Whether it was created is decided by what exists afterwards, never by a status."""
        data = encode(manifest)
        for tries_left in reversed(range(_TRIES)):
            try:
                return put(self._store, manifest.key, [memoryview(data)])
            except CorruptObjectError:
                # It exists with other bytes, so no reader will accept it as a checkpoint.
                raise
            except StoreError as error:
                stat = self._found(manifest, error)
                if stat is not None:
                    return stat
                if not tries_left:
                    self._remove(names.folder(manifest.checkpoint_id, self._opening.nonce))
                    raise
        raise StoreError(f"{manifest.key} could not be written.")

    def _found(self, manifest: Manifest, error: StoreError) -> Stat | None:
        try:
            stat = self._store.stat(manifest.key)
            nonce = decode(self._store.get(manifest.key, generation=stat.generation)).nonce
        except MissingError:
            return None
        except (CorruptCheckpointError, CorruptObjectError):
            nonce = ""
        except StoreError as second:
            raise StoreError(
                f"It is unknown whether {manifest.key} was committed: {error} Then: {second} The next attempt will find out."
            ) from error
        if nonce != manifest.nonce:
            raise ConflictError(f"{manifest.key} of {self._store.url} was written by another process.") from error
        return stat
