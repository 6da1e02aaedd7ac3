"""The manifest of one checkpoint: its contents, byte by byte, and the position of the training."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from ..errors import CorruptCheckpointError
from ..storage.store import Buffer
from . import names
from .envelope import VERSION, fields_of, foreign, unwrap, wrap

# Arrays are aligned to cache lines.
ALIGNMENT = 64
# "failure": saved after an exception of the program.
REASONS = ("interval", "preempt", "final", "manual", "failure")
_KEY = re.compile(r"data/e[0-9]{6,19}/[0-9]{12,19}-[0-9a-f]{8}/t[0-9]{5}-[0-9]{5}\.bin")
_MOST_RANKS = 100_000
# The year 6325: `datetime` ends with 9999.
_LAST_S = 1 << 37
_KINDS = ("arrays", "blobs")
# TensorFlow's names for types of numbers; types of less than a byte take one.
_DTYPE = re.compile(r"bool|(?:q?u?int|b?float|complex)(\d{1,3})(?:_?[a-z][a-z0-9]*)?")
_NOT_FINITE = ("nan", "inf", "-inf")


@dataclass(frozen=True, kw_only=True)
class FileEntry:
    """One object of bytes. The files of one rank and kind, in order, form one stream."""

    key: str
    size: int
    crc32c: int
    generation: str
    rank: int
    kind: str  # "arrays" or "blobs"


@dataclass(frozen=True, kw_only=True)
class ArrayEntry:
    """One array and its offset in rank 0's stream of arrays."""

    path: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


@dataclass(frozen=True, kw_only=True)
class BlobEntry:
    """One blob and its offset in its rank's stream of blobs."""

    rank: int
    name: str
    offset: int
    nbytes: int


@dataclass(frozen=True, kw_only=True)
class About:
    """The facts about the run that wrote a manifest, as JSON."""

    world: Mapping[str, object] = field(default_factory=dict)
    versions: Mapping[str, object] = field(default_factory=dict)
    code: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Everything known about one checkpoint."""

    format_version: int = VERSION
    run_id: str = ""
    epoch: int
    step: int
    serial: int
    nonce: str
    parent: str | None = None  # the commit that this attempt restored or wrote before
    created_at: float = 0.0
    reason: str = "interval"
    position: Any = None
    files: tuple[FileEntry, ...] = ()
    arrays: tuple[ArrayEntry, ...] = ()
    blobs: tuple[BlobEntry, ...] = ()
    ranks: int = 1
    world: Mapping[str, object] = field(default_factory=dict)
    versions: Mapping[str, object] = field(default_factory=dict)
    code: Mapping[str, object] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    best: Mapping[str, object] | None = None  # metric, mode, value and commit of the best checkpoint so far
    keep: bool = False  # the end of a phase
    total_bytes: int = 0
    timings: Mapping[str, float] = field(default_factory=dict)
    downgrades: tuple[str, ...] = ()  # a sentence for each part of the state that is not restored exactly

    @property
    def checkpoint_id(self) -> names.CheckpointId:
        return names.CheckpointId(self.epoch, self.step, self.serial)

    @property
    def key(self) -> str:
        """The name of its commit."""
        return names.commit(self.checkpoint_id)

    @property
    def ends(self) -> tuple[str, ...]:
        """The commits of earlier phases that its position refers to: a restart reads them too."""
        stages = self.position.get("stages") if isinstance(self.position, dict) else None
        phases = [stage for stage in stages if isinstance(stage, dict)] if isinstance(stages, list) else []
        # Each manifest also refers to the commits of the manifest before.
        return tuple(sys.intern(key) for stage in phases if isinstance(key := stage.get("commit"), str) and key)

    def stream(self, kind: str, rank: int = 0) -> tuple[FileEntry, ...]:
        return tuple(file for file in self.files if file.kind == kind and file.rank == rank)

    def blob_files(self) -> list[FileEntry]:
        """The files of all blobs, ordered by rank."""
        return sorted((file for file in self.files if file.kind == "blobs"), key=lambda file: file.rank)


def encode(manifest: Manifest) -> bytes:
    body = asdict(manifest)
    del body["format_version"]
    body["metrics"] = {
        name: value if math.isfinite(value) else str(float(value)) for name, value in manifest.metrics.items()
    }
    return wrap("manifest", body)


def decode(data: Buffer) -> Manifest:
    """Return the manifest in these bytes, or raise CorruptCheckpointError or FutureFormatError."""
    body = unwrap("manifest", data)
    metrics = body.get("metrics")
    if isinstance(metrics, dict):
        body["metrics"] = {name: float(value) if value in _NOT_FINITE else value for name, value in metrics.items()}
    if missing := [field.name for field in fields(Manifest) if field.name not in body]:
        raise foreign("manifest", f"{missing[0]!r} is missing")
    manifest = fields_of(body, "manifest", Manifest)
    _check(manifest)
    return manifest


def _check(manifest: Manifest) -> None:
    """Reject a manifest if its files do not match its arrays and blobs."""
    problem = None
    _check_values(manifest)
    check_files(manifest.files)
    if len({file.key for file in manifest.files}) != len(manifest.files):
        problem = "it lists a file twice"
    elif sum(file.size for file in manifest.files) != manifest.total_bytes:
        problem = "its files do not add up to its size"
    elif any(file.rank >= manifest.ranks or (file.kind == "arrays" and file.rank) for file in manifest.files):
        problem = "it lists a file of an unknown task"
    elif any(blob.rank >= manifest.ranks for blob in manifest.blobs):
        problem = "it lists a blob of an unknown task"
    elif len({array.path for array in manifest.arrays}) != len(manifest.arrays):
        problem = "it lists an array twice"
    elif len({(blob.rank, blob.name) for blob in manifest.blobs}) != len(manifest.blobs):
        problem = "it lists a blob twice"
    elif not _tiles([(a.offset, a.nbytes) for a in manifest.arrays], manifest.stream("arrays"), ALIGNMENT):
        problem = "its arrays do not match its files"
    else:
        for rank in {0, *(blob.rank for blob in manifest.blobs), *(file.rank for file in manifest.files)}:
            spans = [(blob.offset, blob.nbytes) for blob in manifest.blobs if blob.rank == rank]
            if not _tiles(spans, manifest.stream("blobs", rank), 1):
                problem = f"the blobs of rank {rank} do not match its files"
    if problem:
        raise CorruptCheckpointError(f"The manifest contradicts itself: {problem}.")
    for array in manifest.arrays:
        _check_array(array)


def _check_values(manifest: Manifest) -> None:
    if not 1 <= manifest.ranks <= _MOST_RANKS:
        raise foreign("manifest", f"'ranks' is {manifest.ranks}, not a number from 1 to {_MOST_RANKS}")
    if manifest.reason not in REASONS:
        raise foreign("manifest", f"'reason' is {manifest.reason!r:.100}, not one of {', '.join(REASONS)}")
    _check_position(manifest.position)
    if manifest.created_at >= _LAST_S:
        raise foreign("manifest", f"'created_at' is {manifest.created_at}, not a unix time in seconds")


def _check_position(position: Any) -> None:
    """Reject a place in the training that is before its begin; the rest of it is read by the training itself."""
    at = position.get("at") if isinstance(position, Mapping) else None
    for name in ("epoch", "batch"):
        value = at.get(name) if isinstance(at, Mapping) else None
        if value is not None and (type(value) is not int or not 0 <= value < 1 << 60):
            raise foreign("manifest", f"the {name} of its position is {value!r:.100}, not a number from 0 to 2**60")


def _check_array(array: ArrayEntry) -> None:
    """Reject an array if its type is not numeric, or its bytes do not match its shape."""
    about = _DTYPE.fullmatch(array.dtype)
    if about is None:
        raise foreign(
            "manifest", f"the array {array.path!r:.100} has the dtype {array.dtype!r:.100}, which is none of numbers"
        )
    size = max(1, int(about[1] or 8) // 8)
    if math.prod(array.shape) * size != array.nbytes:
        raise foreign(
            "manifest",
            f"the array {array.path!r:.100} has the dtype {array.dtype} and the shape {list(array.shape)!r:.100}, "
            f"which are not {array.nbytes} bytes",
        )


def check_files(files: tuple[FileEntry, ...]) -> None:
    for file in files:
        if not _KEY.fullmatch(file.key) or file.kind not in _KINDS:
            raise CorruptCheckpointError(f"{file.key!r:.100} of kind {file.kind!r:.100} is not a file of a checkpoint.")


def _tiles(spans: list[tuple[int, int]], files: tuple[FileEntry, ...], alignment: int) -> bool:
    end = 0
    for offset, nbytes in spans:
        if offset != aligned(end, alignment):
            return False
        end = offset + nbytes
    return end == sum(file.size for file in files)


def aligned(offset: int, alignment: int = ALIGNMENT) -> int:
    """Return the next offset at which an array may start."""
    return -(-offset // alignment) * alignment
