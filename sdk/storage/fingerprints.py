"""The fingerprint of a program's input: a digest of its files, and the number of their examples."""

from __future__ import annotations

import hashlib
import json
import os
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from glob import has_magic, iglob

from ..errors import StoreError
from .gcs.files import INTERACTIVE, BucketFiles

_WILDCARD = re.compile(r"[*?\[]")
# The names by which file systems of fsspec know a version of a file.
_VERSIONS = ("etag", "ETag", "md5", "mtime", "LastModified")
_LINES, _RECORDS = (".csv", ".tsv", ".jsonl", ".ndjson", ".txt"), (".tfrecord", ".tfrecords")


class UnreadableInputError(StoreError):
    """An input cannot be read: a file system or a vendor's library failed."""


@dataclass(frozen=True, kw_only=True)
class DataState:
    """The fingerprint of an input at some time."""

    digest: str
    examples: int


def state_of(location: str, *, count: bool = True) -> DataState:
    """Return a digest of the names, sizes and times of an input's files, and the number of examples in them.

    An example is a line of a text file (csv, tsv, jsonl, ndjson, txt), a record of a TFRecord file, or any other file. In a
    bucket or at another URL, each object is one. Without `count`, no file is read, and each is one.
    """
    try:
        files = list(_remote(location) if "://" in location else _local(location, count))
    except OSError as error:
        raise UnreadableInputError(f"{location!r} cannot be read: {error.strerror or error}") from error
    digest = hashlib.sha256(json.dumps([[name, *state] for name, _, *state in files]).encode()).hexdigest()
    return DataState(digest=digest, examples=sum(int(number) for _, number, *_ in files))


def _local(location: str, count: bool) -> Iterator[tuple[str, int, int, int]]:
    """Yield the name, examples, size and time of change of each file."""
    is_pattern = has_magic(location) and not os.path.exists(location)
    for top in sorted(iglob(location, recursive=True)) if is_pattern else [location]:
        below = [os.path.join(folder, name) for folder, _, names in os.walk(top) for name in names]
        for path in sorted(below) if os.path.isdir(top) else [top]:
            about = os.stat(path)
            yield path, _examples(path, about.st_size) if count else 1, about.st_size, about.st_mtime_ns


def _examples(path: str, size: int) -> int:
    if path.endswith(_LINES):
        with open(path, "rb") as file:
            return sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b"")) + _unended(path, size)
    if not path.endswith(_RECORDS):
        return 1
    count = at = 0
    with open(path, "rb") as file:
        # Each record has its length, a checksum of it, its bytes, and a checksum of them.
        while at + 12 <= size:
            file.seek(at)
            at += 16 + struct.unpack("<Q", file.read(8))[0]
            count += at <= size
    return count


def _unended(path: str, size: int) -> int:
    """Return 1 if the last line of a file has no end."""
    if not size:
        return 0
    with open(path, "rb") as file:
        file.seek(-1, os.SEEK_END)
        return int(file.read(1) != b"\n")


def _remote(location: str) -> Iterator[tuple[str, int, int, str]]:
    if location.startswith("gs://"):
        bucket, _, pattern = location.removeprefix("gs://").partition("/")
        for file in BucketFiles(f"gs://{bucket}", retry=INTERACTIVE).list(_WILDCARD.split(pattern)[0]):
            if _is_wanted(file.name, pattern):
                yield file.name, 1, file.size, str(file.generation)
        return
    try:
        import fsspec

        system, path = fsspec.core.url_to_fs(location)
        files: dict[str, dict[str, object]] = system.find(path, detail=True) or {path: system.info(path)}
    except Exception as error:
        # Any error of a vendor's library, which a keeper's image may lack, concerns this input only.
        reason = f"{type(error).__name__}: {error}".partition("\n")[0].rstrip(". ")
        raise UnreadableInputError(f"{location!r} cannot be read: {reason}") from error
    for name, about in sorted(files.items()):
        version = next((str(about[key]) for key in _VERSIONS if key in about), "")
        yield name, 1, int(str(about.get("size") or 0)), version


def _is_wanted(name: str, pattern: str) -> bool:
    """True for an object that is the input, lies below it, or matches its pattern; wildcards stop at a slash."""
    if not has_magic(pattern):
        return name == pattern or not pattern or name.startswith(f"{pattern.rstrip('/')}/")
    return fnmatchcase(name, pattern) and ("**" in pattern or name.count("/") == pattern.count("/"))
