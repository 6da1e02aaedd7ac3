"""Reads checkpoints. Everything returned was verified byte by byte against the acknowledged contents."""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from ..errors import (
    AlreadyExistsError,
    CheckpointError,
    ConflictError,
    CorruptCheckpointError,
    CorruptObjectError,
    FutureFormatError,
    MissingError,
    StoreError,
)
from ..logs import logger
from ..storage.store import Stat, Store, exists
from . import names
from .envelope import text_of, wrap
from .manifest import FileEntry, Manifest, decode

_log = logger("checkpoint")

_THREADS = 8
_DAMAGES = (CorruptCheckpointError, CorruptObjectError, MissingError, ConflictError)


@dataclass(frozen=True)
class LoadedArray:
    """One array of a checkpoint; `data` holds its bytes, C-contiguous, aligned to 64 bytes."""

    dtype: str
    shape: tuple[int, ...]
    data: memoryview


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint in memory: arrays by path, blobs by rank and name."""

    manifest: Manifest
    arrays: Mapping[str, LoadedArray]
    blobs: Mapping[int, Mapping[str, bytes]]


def pins(store: Store) -> dict[str, str]:
    """Return the commit of each pin, by name. A damaged pin is an error, because the checkpoint that it keeps is unknown."""
    commits = {}
    for stat in store.list(names.PINS):
        name = stat.key.removeprefix(names.PINS).removesuffix(".json")
        with suppress(MissingError):
            commits[name] = text_of(store.get(stat.key), "pin", "commit")
    return commits


def read_manifest(store: Store, commit: str, run_id: str = "") -> Manifest:
    """Return the manifest of a commit, which must belong to its name and, unless `run_id` is "", to that run."""
    manifest = decode(store.get(commit))
    if manifest.key != commit:
        raise CorruptCheckpointError(f"Its manifest belongs to {manifest.key!r}.")
    if run_id and manifest.run_id not in ("", run_id):
        raise CorruptCheckpointError(
            f"It is a checkpoint of the run {manifest.run_id!r} that was copied into the store of the run {run_id!r}. To start "
            f"from it on purpose, submit with checkpoint_resume_from={f'{manifest.run_id}@{manifest.step}'!r} "
            "(--checkpoint-resume-from)."
        )
    return manifest


def read(store: Store, commit: str, run_id: str = "") -> Checkpoint:
    """Return a checkpoint with everything verified: sizes, checksums, generations, and that nothing is missing.

    CorruptCheckpointError names the difference. After a StoreError the checkpoint may still be good.
    """
    with _as_corrupt(store, commit):
        manifest = read_manifest(store, commit, run_id)
        _compare(store, manifest)
        memory = _memory(manifest.total_bytes)
        spans = _spans(manifest, memory)
        with ThreadPoolExecutor(min(_THREADS, len(spans) or 1), thread_name_prefix="podlift-read") as pool:
            for _ in pool.map(lambda span: _fetch(store, *span), spans):
                pass
        return _split(manifest, memory)


def verify(store: Store, commit: str, run_id: str = "") -> Manifest:
    """Read all of a checkpoint, one object at a time, and return its manifest; raises as `read`."""
    with _as_corrupt(store, commit):
        manifest = read_manifest(store, commit, run_id)
        _compare(store, manifest)
        for file in manifest.files:
            store.get(file.key, generation=file.generation)
        return manifest


def newest(store: Store, *, quarantine: bool = True, run_id: str = "") -> Checkpoint | None:
    """Return the newest checkpoint that verifies; None if there has never been one.

    Raises CorruptCheckpointError if checkpoints exist and none verifies. A store that cannot be read is never treated as
    empty. `quarantine` notes the damaged ones, so that they are not tried again.
    """
    while True:
        notes = {stat.key for stat in store.list(names.QUARANTINE)}
        commits = [stat.key for stat in commits_of(store)]
        vanished, reasons = False, dict[str, str]()
        for commit in reversed(commits):
            if names.note(commit) in notes:
                reasons[commit] = noted(store, commit) or "It failed verification before."
                _log.info(f"The checkpoint {commit!r} is in quarantine. {reasons[commit]} Trying an older one.")
                continue
            try:
                return read(store, commit, run_id)
            except CorruptCheckpointError as error:
                if not exists(store, commit):
                    # Not damaged: retention of another process removed it while we read.
                    vanished = True
                    break
                reasons[commit] = str(error)
                _log.info(f"{error} Trying an older one.")
                if quarantine:
                    put_note(store, commit, str(error))
        if not vanished:
            break
    if not commits:
        return None
    raise CorruptCheckpointError(
        f"None of the {len(commits)} checkpoints of {store.url} can be verified; the newest is {commits[-1]!r}. "
        f"{reasons[commits[-1]]} Nothing was removed. Next: restore the folder from a backup, or submit a new run."
    )


def commits_of(store: Store) -> list[Stat]:
    """Return all commits, the oldest first; other objects are ignored."""
    stats = {
        checkpoint_id: stat for stat in store.list(names.COMMITS) if (checkpoint_id := names.parse_commit(stat.key))
    }
    return [stats[checkpoint_id] for checkpoint_id in sorted(stats)]


def put_note(store: Store, commit: str, reason: str) -> None:
    """Put a checkpoint into quarantine; a failure is only logged."""
    try:
        with suppress(AlreadyExistsError):
            store.put_new(names.note(commit), [wrap("note", {"commit": commit, "reason": reason})])
    except StoreError as error:
        _log.info(f"The checkpoint {commit!r} could not be put into quarantine: {error}")


def noted(store: Store, commit: str) -> str | None:
    """Return why a checkpoint is in quarantine; None if that is unknown."""
    try:
        return text_of(store.get(names.note(commit)), "note", "reason")
    except (MissingError, CorruptObjectError, CheckpointError, FutureFormatError):
        return None


def _compare(store: Store, manifest: Manifest) -> None:
    """Compare the store's records with the manifest before allocating memory for the claims of a manifest."""
    folders = {file.key.rpartition("/")[0] + "/" for file in manifest.files}
    stats = {stat.key: stat for folder in folders for stat in store.list(folder)}
    for file in manifest.files:
        stat = stats.get(file.key)
        if stat is None:
            raise CorruptCheckpointError(f"Its file {file.key!r} is missing.")
        if (stat.size, stat.crc32c, stat.generation) != (file.size, file.crc32c, file.generation):
            raise CorruptCheckpointError(
                f"Its file {file.key!r} differs from the one that was written: {stat.size} bytes, generation "
                f"{stat.generation}; written: {file.size} bytes, generation {file.generation}."
            )


def _fetch(store: Store, file: FileEntry, target: memoryview) -> None:
    # The store verifies the crc of the bytes, and that the generation is still the one of the manifest.
    try:
        store.get(file.key, generation=file.generation, into=target)
    except CorruptObjectError:
        # Perhaps damaged in transit: then a second read succeeds.
        store.get(file.key, generation=file.generation, into=target)


@contextmanager
def _as_corrupt(store: Store, commit: str) -> Iterator[None]:
    try:
        yield
    except _DAMAGES as error:
        raise CorruptCheckpointError(f"The checkpoint {commit!r} of {store.url} cannot be verified. {error}") from error


def _spans(manifest: Manifest, memory: memoryview) -> list[tuple[FileEntry, memoryview]]:
    """Give every file its memory. Files of one stream are adjacent, so that an array is a slice of it."""
    spans, start = [], 0
    for file in (*manifest.stream("arrays"), *manifest.blob_files()):
        spans.append((file, memory[start : start + file.size]))
        start += file.size
    return spans


def _memory(size: int) -> memoryview:
    if not size:
        return memoryview(bytearray())
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        # Faulting in small pages would cost more than reading the file.
        with suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(memory)


def _split(manifest: Manifest, memory: memoryview) -> Checkpoint:
    arrays = {a.path: LoadedArray(a.dtype, a.shape, memory[a.offset : a.offset + a.nbytes]) for a in manifest.arrays}
    starts: dict[int, int] = {}
    start = sum(file.size for file in manifest.stream("arrays"))
    for file in manifest.blob_files():
        starts.setdefault(file.rank, start)
        start += file.size
    blobs: dict[int, dict[str, bytes]] = {rank: {} for rank in range(manifest.ranks)}
    for blob in manifest.blobs:
        start = starts.get(blob.rank, 0) + blob.offset  # empty blobs may have no file
        blobs[blob.rank][blob.name] = bytes(memory[start : start + blob.nbytes])
    return Checkpoint(manifest, arrays, blobs)
