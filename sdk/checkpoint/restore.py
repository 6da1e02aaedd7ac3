"""Reads checkpoints. What is returned was compared, byte by byte, with what was acknowledged; else nothing is returned."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Literal

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
from ..storage.store import Stat, Store
from . import names
from .envelope import unwrap, wrap
from .fields import Fields
from .manifest import File, Manifest, decode

_THREADS = 8
_DAMAGES = (CorruptCheckpointError, CorruptObjectError, MissingError, ConflictError)


@dataclass(frozen=True)
class Loaded:
    """One array of a checkpoint: `data` holds its bytes, C-contiguous, aligned to 64 bytes."""

    dtype: str
    shape: tuple[int, ...]
    data: memoryview


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint in memory, verified.

    Attributes:
        manifest: what it is.
        arrays: by path.
        blobs: by rank, then by name.
    """

    manifest: Manifest
    arrays: Mapping[str, Loaded]
    blobs: Mapping[int, Mapping[str, bytes]]


def read_manifest(store: Store, commit: str, run_id: str = "") -> Manifest:
    """Return the manifest of a commit.

    Args:
        store: where it is.
        commit: its key.
        run_id: the run whose store this is; "" where any run's checkpoint will do.

    Raises:
        CorruptCheckpointError: it is damaged, of another place than its name says, or of another run.
        FutureFormatError: a newer podlift wrote it.
        StoreError: it cannot be read.
    """
    manifest = decode(store.get(commit))
    if manifest.key != commit:
        raise CorruptCheckpointError(f"The manifest says that it is {manifest.key!r}.")
    if run_id and manifest.run_id not in ("", run_id):
        raise CorruptCheckpointError(
            f"It is a checkpoint of the run {manifest.run_id!r}, and this is the store of the run {run_id!r}: it was copied "
            f"here. To start with it on purpose, submit with resume_from={f'{manifest.run_id}@{manifest.step}'!r} "
            "(--resume-from)."
        )
    return manifest


def read(store: Store, commit: str, run_id: str = "") -> Checkpoint:
    """Return a checkpoint, with everything verified: sizes, checksums, generations, and that nothing is missing.

    Args:
        store: where it is.
        commit: its key.
        run_id: as of `read_manifest`.

    Raises:
        CorruptCheckpointError: anything is not as it was written; the sentence names what.
        FutureFormatError: a newer podlift wrote it.
        StoreError: it cannot be read, which says nothing about whether it is good.
    """
    with _damage_told(store, commit):
        manifest = read_manifest(store, commit, run_id)
        _compare(store, manifest)
        memory = _memory(manifest.total_bytes)
        spans = _spans(manifest, memory)
        with ThreadPoolExecutor(min(_THREADS, len(spans) or 1), thread_name_prefix="podlift-read") as pool:
            for _ in pool.map(lambda span: _fetch(store, *span), spans):
                pass
        return _taken_apart(manifest, memory)


def verify(store: Store, commit: str, run_id: str = "") -> Manifest:
    """Return the manifest of a checkpoint after reading all of it, a few objects at a time; raises as `read` does."""
    with _damage_told(store, commit):
        manifest = read_manifest(store, commit, run_id)
        _compare(store, manifest)
        for file in manifest.files:
            store.get(file.key, generation=file.generation)
        return manifest


def newest(
    store: Store,
    log: Callable[[str], None],
    on_corrupt: Literal["raise", "fresh"] = "raise",
    *,
    quarantine: bool = True,
    run_id: str = "",
) -> Checkpoint | None:
    """Return the newest checkpoint that verifies; None if there has never been one.

    Args:
        store: where they are.
        log: takes a sentence for each checkpoint that does not verify.
        on_corrupt: what to do if there are some and none verifies: "raise", or begin afresh.
        quarantine: leave a note at those which do not verify, so that nobody tries them again; not in a store of others.
        run_id: as of `read_manifest`.

    Raises:
        CorruptCheckpointError: there are some and none verifies.
        FutureFormatError: a newer podlift wrote the newest one.
        StoreError: the store cannot be read. Never taken for an empty store.
    """
    while True:
        notes = {stat.key for stat in store.list(names.QUARANTINE)}
        commits = [stat.key for stat in commits_of(store)]
        vanished, reasons = False, dict[str, str]()
        for commit in reversed(commits):
            if names.note(commit) in notes:
                reasons[commit] = noted(store, commit) or "It did not verify before."
                log(f"The checkpoint {commit!r} is in quarantine. {reasons[commit]} Looking at an older one.")
                continue
            try:
                return read(store, commit, run_id)
            except CorruptCheckpointError as error:
                if _gone(store, commit):
                    # Not damaged: another process has removed it as too old while we read.
                    vanished = True
                    break
                reasons[commit] = str(error)
                log(f"{error} Looking at an older one.")
                if quarantine:
                    put_note(store, commit, str(error), log)
        if not vanished:
            break
    if not commits:
        return None
    sentence = f"None of the {len(commits)} checkpoints of {store.url} verifies; the newest is {commits[-1]!r}."
    if on_corrupt == "fresh":
        log(f"{sentence} Training begins afresh.")
        return None
    raise CorruptCheckpointError(
        f"{sentence} {reasons[commits[-1]]} Nothing was removed. Restore the folder from a backup, or begin with a new run."
    )


def commits_of(store: Store) -> list[Stat]:
    """Return all commits, the oldest first; what else lies there is not looked at."""
    found = [(place, stat) for stat in store.list(names.COMMITS) if (place := names.place_of(stat.key))]
    return [stat for _, stat in sorted(found, key=lambda pair: pair[0])]


def put_note(store: Store, commit: str, reason: str, log: Callable[[str], None]) -> None:
    """Put a checkpoint into quarantine; that this fails is a sentence in the log."""
    try:
        with suppress(AlreadyExistsError):
            store.put_new(names.note(commit), [wrap("note", {"commit": commit, "reason": reason})])
    except StoreError as error:
        log(f"The checkpoint {commit!r} could not be put into quarantine: {error}")


def noted(store: Store, commit: str) -> str | None:
    """Return why a checkpoint is in quarantine; None where that is not known."""
    try:
        return Fields(unwrap("note", store.get(names.note(commit))), "The note").text("reason")
    except (MissingError, CorruptObjectError, CheckpointError, FutureFormatError):
        return None


def _gone(store: Store, commit: str) -> bool:
    try:
        store.stat(commit)
    except MissingError:
        return True
    return False


def _compare(store: Store, manifest: Manifest) -> None:
    """Compare what the store knows with the manifest, before memory is taken for what a manifest claims."""
    folders = {file.key.rpartition("/")[0] + "/" for file in manifest.files}
    stats = {stat.key: stat for folder in folders for stat in store.list(folder)}
    for file in manifest.files:
        stat = stats.get(file.key)
        if stat is None:
            raise CorruptCheckpointError(f"Its file {file.key!r} is gone.")
        if (stat.size, stat.crc32c, stat.generation) != (file.size, file.crc32c, file.generation):
            raise CorruptCheckpointError(
                f"Its file {file.key!r} is not the one that was written: {stat.size} bytes, generation {stat.generation}; "
                f"written: {file.size} bytes, generation {file.generation}."
            )


def _fetch(store: Store, file: File, target: memoryview) -> None:
    # The store compares its crc with the bytes, and its generation, read again here, with the one of the manifest.
    try:
        store.get(file.key, generation=file.generation, into=target)
    except CorruptObjectError:
        # Damaged on its way here, perhaps: then it is good when it comes again.
        store.get(file.key, generation=file.generation, into=target)


@contextmanager
def _damage_told(store: Store, commit: str) -> Iterator[None]:
    try:
        yield
    except _DAMAGES as error:
        raise CorruptCheckpointError(f"The checkpoint {commit!r} of {store.url} does not verify. {error}") from error


def _spans(manifest: Manifest, memory: memoryview) -> list[tuple[File, memoryview]]:
    """Give every file its memory: those of one stream lie one behind the other, so that an array is a slice of it."""
    files = [*manifest.stream("arrays")]
    for rank in range(manifest.ranks):
        files += manifest.stream("blobs", rank)
    spans = []
    start = 0
    for file in files:
        spans.append((file, memory[start : start + file.size]))
        start += file.size
    return spans


def _memory(size: int) -> memoryview:
    if not size:
        return memoryview(bytearray())
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        # Fresh small pages cost more than reading the file does.
        with suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(memory)


def _taken_apart(manifest: Manifest, memory: memoryview) -> Checkpoint:
    arrays = {a.path: Loaded(a.dtype, a.shape, memory[a.offset : a.offset + a.nbytes]) for a in manifest.arrays}
    starts = {}
    start = sum(file.size for file in manifest.stream("arrays"))
    for rank in range(manifest.ranks):
        starts[rank] = start
        start += sum(file.size for file in manifest.stream("blobs", rank))
    blobs: dict[int, dict[str, bytes]] = {rank: {} for rank in range(manifest.ranks)}
    for blob in manifest.blobs:
        start = starts[blob.rank] + blob.offset
        blobs[blob.rank][blob.name] = bytes(memory[start : start + blob.nbytes])
    return Checkpoint(manifest, arrays, blobs)
