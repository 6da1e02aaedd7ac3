"""Reads one task's log while it grows: each byte once, even if the log is rotated at the same time."""

from __future__ import annotations

import math
import os
import re
import stat
from collections.abc import Iterator
from contextlib import suppress

from ..storage import posix
from .log_index import LogIndex

# A line's text and its end, as in `LogLine`.
Line = tuple[str, str]

# Longer lines are split.
MAX_LINE_BYTES = 1 << 20
# A carriage return before a line feed belongs to it. At the end of a chunk, its line feed may follow in the next one.
_END = re.compile(rb"(\r*\n|\r+(?=[^\r\n]))")
# Read at once, per task: merging the logs of 32 tasks holds 32 chunks.
_CHUNK_BYTES = 1 << 17

# A log that was truncated and has grown again is recognized by the bytes before the read position.
_OVERLAP_BYTES = 1 << 10

# Lines, and when they existed at the latest (inf if unknown).
Batch = tuple[float, list[Line]]


def last_lines(path: str, count: int) -> str:
    """Return the last lines of a log as a terminal would show them, or ""."""
    try:
        with posix.opened(path) as handle:
            splitter, start = LineSplitter(), max(0, os.fstat(handle).st_size - _CHUNK_BYTES)
            lines = splitter.feed(os.pread(handle, _CHUNK_BYTES, start)) + splitter.finish()
    except OSError:
        return ""
    # The first line began before the chunk.
    complete = [text for text, end in lines[1 if start and len(lines) > 1 else 0 :] if end != "\r"]
    return "\n".join(complete[-count:])


class LogTail:
    """The unread part of a task's log.

    A renamed log is still read, because the task keeps writing to it, together with the file that took its name. A
    truncated log is read from its beginning. Files rotated before the first read are included if they are next to the log
    and named as logrotate does (NAME.NUMBER), uncompressed.
    """

    def __init__(self, path: str, task: str, index: LogIndex) -> None:
        self._path = path
        self._task = task
        self._index = index
        self._files: list[_OpenLog] = []

    def batches(self, *, last: bool) -> Iterator[Batch]:
        """Yield what was written between the previous call and the start of this one. `last`: include an unterminated line."""
        self._find()
        for file in self._files:
            yield from file.batches(self._index, self._task, last=last)

    def close(self) -> None:
        for file in self._files:
            file.close()

    def _find(self) -> None:
        if not self._files:
            # The index tells files apart by their order. The log itself is the last one.
            paths = [*_rotated(self._path), self._path]
            newest = len(self._index.of(self._task)) - 1
            for back, path in zip(range(len(paths) - 1, -1, -1), paths, strict=True):
                self._open(path, newest - back)
        elif not self._files[-1].is_at(self._path):
            self._open(self._path, self._files[-1].number + 1)

    def _open(self, path: str, number: int) -> None:
        # Being renamed. The next call will find it.
        with suppress(FileNotFoundError):
            # Opening a named pipe would block.
            handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            if stat.S_ISREG(os.fstat(handle).st_mode):
                self._files.append(_OpenLog(handle, number))
            else:
                os.close(handle)


class _OpenLog:
    """One file and its read position. `number` is its place among the files of the same log."""

    def __init__(self, handle: int, number: int) -> None:
        self.number = number
        self._handle = handle
        self._read = 0
        self._before = b""
        self._time = math.inf
        self._splitter = LineSplitter()

    def is_at(self, path: str) -> bool:
        """True unless the path is another file by now."""
        try:
            return os.path.samestat(os.stat(path), os.fstat(self._handle))
        except FileNotFoundError:
            return True

    def batches(self, index: LogIndex, task: str, *, last: bool) -> Iterator[Batch]:
        size = os.fstat(self._handle).st_size
        if self._was_truncated(size):
            yield self._time, self._splitter.finish()
            self._read, self._before, self.number = 0, b"", self.number + 1
        growths = index.of(task)
        growth = growths[self.number] if 0 <= self.number < len(growths) else None
        while self._read < size:
            then = growth.after(self._read) if growth else None
            self._time, until = then or (math.inf, size)
            data = os.pread(self._handle, min(_CHUNK_BYTES, until - self._read, size - self._read), self._read)
            if not data:
                break  # truncated at this moment
            self._read += len(data)
            self._before = (self._before + data)[-_OVERLAP_BYTES:]
            yield self._time, self._splitter.feed(data)
        if last:
            yield self._time, self._splitter.finish()

    def _was_truncated(self, size: int) -> bool:
        if size < self._read:
            return True
        before = os.pread(self._handle, len(self._before), self._read - len(self._before))
        # If fewer bytes are read, it was truncated at this moment. The next call will notice.
        return before != self._before and len(before) == len(self._before)

    def close(self) -> None:
        os.close(self._handle)


def _rotated(path: str) -> list[str]:
    folder, name = os.path.split(path)
    with suppress(OSError):
        numbers = [other[len(name) + 1 :] for other in os.listdir(folder) if other.startswith(f"{name}.")]
        return [f"{path}.{number}" for number in sorted((n for n in numbers if n.isdecimal()), key=int, reverse=True)]
    return []


class LineSplitter:
    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[Line]:
        """Return the lines completed by `data`, and the parts of a line that is too long."""
        data = self._rest + data
        # Nearly every log takes this path, which is five times as fast.
        if b"\r" not in data and len(data) <= MAX_LINE_BYTES:
            whole, end, self._rest = data.rpartition(b"\n")
            return [(text, "\n") for text in _text(whole).split("\n")] if end else []
        *parts, rest = _END.split(data)
        lines = [
            line
            for content, end in zip(parts[::2], parts[1::2], strict=True)
            for line in _ended(content, "\n" if end.endswith(b"\n") else "\r")
        ]
        content = rest.rstrip(b"\r")
        *pieces, last = _pieces(content)
        self._rest = last + rest[len(content) :][:1]
        return lines + [(_text(piece), "") for piece in pieces]

    def finish(self) -> list[Line]:
        content, self._rest = self._rest, b""
        text = _text(content.rstrip(b"\r").rstrip(b"\b") if content.endswith(b"\r") else content)
        return [(text, "")] if text else []


def _ended(content: bytes, end: str) -> list[Line]:
    *pieces, last = _pieces(content)
    lines = [(_text(piece), "") for piece in pieces]
    if end == "\r":
        # Keras goes back with backspaces as well as a carriage return.
        last = last.rstrip(b"\b")
        if not last:
            return lines
    return [*lines, (_text(last), end)]


def _pieces(content: bytes) -> Iterator[bytes]:
    """Yield parts of a long line, none of which ends inside a character."""
    start = 0
    while len(content) - start > MAX_LINE_BYTES:
        stop = start + MAX_LINE_BYTES
        back = next((n for n in range(4) if content[stop - n] & 0xC0 != 0x80), 0)
        yield content[start : stop - back]
        start = stop - back
    yield content[start:]


def _text(content: bytes) -> str:
    return content.decode("utf-8", "replace")
