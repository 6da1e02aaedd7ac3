"""The contents of one checkpoint, arrays and blobs, and how one task writes them. No framework is imported here.

They are packed into objects of bounded size, several at a time, without joining or copying them.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor, Future
from dataclasses import asdict, dataclass, field

from ..errors import CorruptCheckpointError, CorruptObjectError, InputError, StoreError
from ..storage.checksums import crc32c
from ..storage.raw_memory import flat
from ..storage.store import Buffer, Stat, Store
from . import names
from .envelope import fields_of, unwrap, wrap
from .manifest import ALIGNMENT, ArrayEntry, BlobEntry, FileEntry, aligned, check_files

# Small enough that the first ones reach the disk while the last ones are still being hashed.
OBJECT_BYTES = 32 << 20
WRITERS = 4
# Objects that are queued or in flight, which bounds the memory: enough that each thread finds its next object ready.
_MAX_PENDING = 2 * WRITERS
_PADDING = memoryview(bytes(ALIGNMENT))
_BLOB = re.compile(r"[a-z0-9_.-]{1,60}")


@dataclass(frozen=True)
class Array:
    """One array; `data` returns its bytes, C-contiguous, and is called once, in the background."""

    path: str
    dtype: str
    shape: tuple[int, ...]
    data: Callable[[], memoryview]


@dataclass(frozen=True)
class Contents:
    """All of one checkpoint: arrays, written by rank 0 only, and small states by name, which every task writes for itself."""

    arrays: tuple[Array, ...] = ()
    blobs: Mapping[str, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        uses = Counter(array.path for array in self.arrays)
        problems = [
            f"Two arrays of the checkpoint have the name {path!r}." for path, count in sorted(uses.items()) if count > 1
        ]
        problems += [
            f"The name of a blob may hold lowercase letters, digits, dots, dashes and underscores. Received: {name!r}."
            for name in self.blobs
            if not _BLOB.fullmatch(name)
        ]
        if problems:
            raise InputError(problems)


@dataclass(frozen=True, kw_only=True)
class TaskObjects:
    """The objects that one task wrote for one checkpoint."""

    files: tuple[FileEntry, ...]
    arrays: tuple[ArrayEntry, ...]
    blobs: tuple[BlobEntry, ...]


def write(store: Store, pool: Executor, contents: Contents, folder: str, rank: int, object_bytes: int) -> TaskObjects:
    """Write everything of one task and return the objects in order; after a StoreError some may exist."""
    arrays: list[ArrayEntry] = []
    blobs: list[BlobEntry] = []
    under_way: deque[tuple[str, Future[Stat]]] = deque()
    files: list[FileEntry] = []

    def oldest() -> None:
        kind, future = under_way.popleft()
        stat = future.result()
        key, size, crc, generation = stat.key, stat.size, stat.crc32c, stat.generation
        files.append(FileEntry(key=key, size=size, crc32c=crc, generation=generation, rank=rank, kind=kind))

    views = [("blobs", _blob_views(contents, rank, blobs))]
    if rank == 0:
        views.insert(0, ("arrays", _array_views(contents.arrays, arrays)))
    try:
        for kind, chunk in ((kind, chunk) for kind, stream in views for chunk in pack(stream, object_bytes)):
            if len(under_way) >= _MAX_PENDING:
                oldest()
            key = names.packed(folder, rank, len(files) + len(under_way))
            under_way.append((kind, pool.submit(put, store, key, chunk)))
        while under_way:
            oldest()
    finally:
        # After a failure no write may still be running: the objects are removed next.
        for _, future in under_way:
            if not future.cancel():
                future.exception()
    return TaskObjects(files=tuple(files), arrays=tuple(arrays), blobs=tuple(blobs))


def put(store: Store, key: str, chunk: list[memoryview]) -> Stat:
    """Create one object, or find that it exists although the store reported a failure; verifies the stored bytes."""
    crc = crc32c(chunk)
    size = sum(len(view) for view in chunk)
    try:
        stat = store.put_new(key, chunk, crc=crc)
    except StoreError as error:
        # The reply may be lost or the request repeated: the existing object decides.
        try:
            stat = store.stat(key)
        except StoreError:
            raise error from None
        if (stat.size, stat.crc32c) != (size, crc):
            raise
    if (stat.size, stat.crc32c) != (size, crc):
        raise CorruptObjectError(
            f"{store.url} stored different bytes of {key!r} than it was given: {stat.size} bytes with crc32c "
            f"{stat.crc32c:08x}, not {size} with {crc:08x}."
        )
    return stat


def pack(views: Iterable[memoryview], limit: int) -> Iterator[list[memoryview]]:
    """Cut a stream of buffers into chunks of `limit` bytes, the last one shorter, without copying."""
    chunk: list[memoryview] = []
    room = limit
    for view in views:
        rest = view
        while len(rest):
            piece, rest = rest[:room], rest[room:]
            chunk.append(piece)
            room -= len(piece)
            if not room:
                yield chunk
                chunk, room = [], limit
    if chunk:
        yield chunk


def encode_receipt(checkpoint_id: names.CheckpointId, nonce: str, rank: int, written: TaskObjects) -> bytes:
    """Return a task's report to rank 0 about its bytes."""
    return wrap("receipt", {"place": checkpoint_id, "nonce": nonce, "rank": rank, **asdict(written)})


def decode_receipt(data: Buffer, checkpoint_id: names.CheckpointId, nonce: str, rank: int) -> TaskObjects:
    """Return the objects of a task for this checkpoint; CorruptCheckpointError for any other receipt."""
    body = unwrap("receipt", data)
    if (body.get("place"), body.get("nonce"), body.get("rank")) != (list(checkpoint_id), nonce, rank):
        raise CorruptCheckpointError("The receipt belongs to another checkpoint, attempt or task.")
    written = fields_of(body, "receipt", TaskObjects)
    check_files(written.files)
    if {*(file.rank for file in written.files), *(blob.rank for blob in written.blobs)} - {rank}:
        raise CorruptCheckpointError("The receipt lists files of another task.")
    return written


def _array_views(arrays: Iterable[Array], entries: list[ArrayEntry]) -> Iterator[memoryview]:
    end = 0
    for array in arrays:
        view = flat(_contiguous(array))
        offset = aligned(end)
        entries.append(
            ArrayEntry(path=array.path, dtype=array.dtype, shape=array.shape, offset=offset, nbytes=len(view))
        )
        yield _PADDING[: offset - end]
        yield view
        end = offset + len(view)


def _contiguous(array: Array) -> memoryview:
    view = array.data()
    if not view.c_contiguous:
        raise InputError(f"The array {array.path!r} is not C-contiguous. Next: copy it before saving it.")
    return view


def _blob_views(contents: Contents, rank: int, entries: list[BlobEntry]) -> Iterator[memoryview]:
    end = 0
    for name, data in sorted(contents.blobs.items()):
        entries.append(BlobEntry(rank=rank, name=name, offset=end, nbytes=len(data)))
        yield memoryview(data)
        end += len(data)
