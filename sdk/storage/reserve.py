"""Disk space reserved at the start of a process for its last records, which are written in place if the disk is full.

A record that cannot be created as a file, because the disk, its inodes or the process's file handles are used up, goes into the
reserve of its writer, one line each. Readers find it there. A reserve that was not needed is removed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

BYTES = 32 << 10
# Kept for the final record.
_LAST_BYTES = 12 << 10
# The length to which a long text is shortened.
_TEXT = 4_000


class Reserve:
    """The reserve of one source in one attempt. If it cannot be created, as on a full disk, nothing can be added."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._used = 0
        self._file: int | None = None
        with suppress(OSError):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
            try:
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(file, 0, BYTES)
                else:
                    os.pwrite(file, bytes(BYTES), 0)
                self._file = file
            except OSError:
                os.close(file)
                os.unlink(path)

    def add(self, name: str, record: Mapping[str, object], *, last: bool) -> bool:
        """Write a record in place; False if it does not fit. The last one may use all space and is shortened to fit."""
        limit = BYTES if last else BYTES - _LAST_BYTES
        line = _line(name, record)
        if last and self._used + len(line) >= limit:
            line = _line(name, _cut(record))
        if self._file is None or self._used + len(line) >= limit:
            return False
        try:
            os.pwrite(self._file, line, self._used)
            os.fsync(self._file)
        except OSError:
            return False
        self._used += len(line)
        return True

    def close(self) -> None:
        """Close it, and remove the file if nothing was added."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
            if not self._used:
                _remove(self._path)


def read(folder: str) -> Iterator[tuple[str, bytes]]:
    with suppress(FileNotFoundError):
        for name in sorted(os.listdir(folder)):
            # An unused reserve may be removed at any moment.
            with suppress(FileNotFoundError), open(f"{folder}/{name}", "rb") as file:
                if file.read(1) not in (b"", b"\0"):
                    file.seek(0)
                    yield from _records(file.read(BYTES))


def sweep(folder: str, sources: frozenset[str], attempt: int) -> None:
    for source in sources:
        path = f"{folder}/{attempt:04d}.{source}"
        with suppress(OSError):
            with open(path, "rb") as file:
                used = file.read(1) not in (b"", b"\0")
            if not used:
                _remove(path)


def _records(data: bytes) -> Iterator[tuple[str, bytes]]:
    # An incomplete line was being written when its process or the machine stopped.
    for line in data.rstrip(b"\0").split(b"\n")[:-1]:
        with suppress(ValueError, KeyError, TypeError):
            entry = json.loads(line)
            yield str(entry["name"]), json.dumps(entry["record"]).encode()


def _line(name: str, record: Mapping[str, object]) -> bytes:
    return json.dumps({"name": name, "record": record}).encode() + b"\n"


def _cut(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _cut(item) for name, item in value.items()}
    if isinstance(value, str) and len(value) > _TEXT:
        return f"{value[: _TEXT // 2]}\n...\n{value[-_TEXT // 2 :]}"
    return value


def _remove(path: str) -> None:
    with suppress(OSError):
        os.unlink(path)
        os.rmdir(os.path.dirname(path))
