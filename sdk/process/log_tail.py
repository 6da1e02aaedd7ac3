"""Reads one task's log while it grows: each byte once, also when the log is rotated under the reader's eyes."""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Iterator
from contextlib import suppress

from .log_index import Stamps
from .log_lines import Cutter, Line

# What is read at once, of each task: a merge of 32 tasks holds 32 of these.
_CHUNK_BYTES = 1 << 17

# A log that was emptied and has grown again is known by what lies before the place where reading stopped.
_REMEMBERED_BYTES = 1 << 10

# When the lines were there at the latest, inf where nobody looked, and the lines.
Batch = tuple[float, list[Line]]


def last_lines(path: str, count: int) -> str:
    """Return the last lines of a log as a terminal would show them; "" where there is none."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        size = os.fstat(handle).st_size
        cutter, start = Cutter(), max(0, size - _CHUNK_BYTES)
        found = cutter.cut(os.pread(handle, _CHUNK_BYTES, start)) + cutter.end()
    except OSError:
        return ""
    finally:
        os.close(handle)
    # The first one began before.
    stays = [text for text, end in found[1 if start and len(found) > 1 else 0 :] if end != "\r"]
    return "\n".join(stays[-count:])


class Tail:
    """What was not read yet of a task's log.

    A log that was renamed goes on being read, as the task goes on writing to it, beside the file that took its name; one that
    was emptied is read from its beginning. What was rotated away before the first look is read if it lies beside the log under
    its name and a number, as logrotate calls it, and is not packed.

    Args:
        path: the log; it may not exist yet.
        task: whose it is.
        stamps: when it grew.
    """

    def __init__(self, path: str, task: str, stamps: Stamps) -> None:
        self._path = path
        self._task = task
        self._stamps = stamps
        self._files: list[_File] = []

    def batches(self, *, last: bool) -> Iterator[Batch]:
        """Yield what the log holds more than at the last call, and not what is written meanwhile.

        Args:
            last: nothing more will come, so what has no end is a line too.
        """
        self._find()
        for file in self._files:
            yield from file.batches(self._stamps, self._task, last=last)

    def close(self) -> None:
        """Let go of the files."""
        for file in self._files:
            file.close()

    def _find(self) -> None:
        if not self._files:
            # The stamps tell files apart by their order, and the log is the last one.
            paths = [*_rotated(self._path), self._path]
            newest = len(self._stamps.of(self._task)) - 1
            for back, path in zip(range(len(paths) - 1, -1, -1), paths, strict=True):
                self._open(path, newest - back)
        elif not self._files[-1].is_at(self._path):
            self._open(self._path, self._files[-1].place + 1)

    def _open(self, path: str, place: int) -> None:
        # Between two names it has none: the next call will find it.
        with suppress(FileNotFoundError):
            # A named pipe in its place would be waited for.
            handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            if stat.S_ISREG(os.fstat(handle).st_mode):
                self._files.append(_File(handle, place))
            else:
                os.close(handle)


class _File:
    """One file, and how far it was read; `place` is its number among those of the same log."""

    def __init__(self, handle: int, place: int) -> None:
        self.place = place
        self._handle = handle
        self._read = 0
        self._before = b""
        self._time = math.inf
        self._cutter = Cutter()

    def is_at(self, path: str) -> bool:
        """True unless another file lies at the path by now."""
        try:
            return os.path.samestat(os.stat(path), os.fstat(self._handle))
        except FileNotFoundError:
            return True

    def batches(self, stamps: Stamps, task: str, *, last: bool) -> Iterator[Batch]:
        size = os.fstat(self._handle).st_size
        if self._was_emptied(size):
            yield self._time, self._cutter.end()
            self._read, self._before, self.place = 0, b"", self.place + 1
        known = stamps.of(task)
        growth = known[self.place] if 0 <= self.place < len(known) else None
        while self._read < size:
            then = growth.after(self._read) if growth else None
            self._time, until = then or (math.inf, size)
            data = os.pread(self._handle, min(_CHUNK_BYTES, until - self._read, size - self._read), self._read)
            if not data:
                break  # emptied at this moment
            self._read += len(data)
            self._before = (self._before + data)[-_REMEMBERED_BYTES:]
            yield self._time, self._cutter.cut(data)
        if last:
            yield self._time, self._cutter.end()

    def _was_emptied(self, size: int) -> bool:
        if size < self._read:
            return True
        before = os.pread(self._handle, len(self._before), self._read - len(self._before))
        # Where fewer are read it was emptied at this moment: the next call will see it.
        return before != self._before and len(before) == len(self._before)

    def close(self) -> None:
        os.close(self._handle)


def _rotated(path: str) -> list[str]:
    """Return the files that the log was renamed to, oldest first."""
    folder, name = os.path.split(path)
    with suppress(OSError):
        numbers = [other[len(name) + 1 :] for other in os.listdir(folder) if other.startswith(f"{name}.")]
        return [f"{path}.{number}" for number in sorted((n for n in numbers if n.isdigit()), key=int, reverse=True)]
    return []
