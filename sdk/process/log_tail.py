"""Reads one task's log while it grows: each byte once."""

from __future__ import annotations

import math
import os
import re
import stat
from collections.abc import Iterator
from contextlib import suppress

from ..storage import posix
from .log_index import LogGrowth

# A line's text and its end, as in `LogLine`.
Line = tuple[str, str]

# Longer lines are split.
MAX_LINE_BYTES = 1 << 20
# A carriage return before a line feed belongs to it. At the end of a chunk, its line feed may follow in the next one.
_END = re.compile(rb"(\r*\n|\r+(?=[^\r\n]))")
# Read at once, per task: merging the logs of 32 tasks holds 32 chunks.
_CHUNK_BYTES = 1 << 17

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
    """The unread part of a task's log: of the file that had the name first, whatever it is called since."""

    def __init__(self, path: str, growth: LogGrowth) -> None:
        self._path = path
        self._growth = growth
        self._handle: int | None = None
        self._read = 0
        self._time = math.inf
        self._splitter = LineSplitter()

    def batches(self, *, last: bool) -> Iterator[Batch]:
        """Yield the output between the previous call and the start of this one. `last`: include an unterminated line."""
        if self._handle is None:
            self._open()
        if self._handle is None:
            return
        size = os.fstat(self._handle).st_size
        while self._read < size:
            self._time, until = self._growth.after(self._read) or (math.inf, size)
            data = os.pread(self._handle, min(_CHUNK_BYTES, until - self._read, size - self._read), self._read)
            if not data:
                break  # emptied at this moment
            self._read += len(data)
            yield self._time, self._splitter.feed(data)
        if last:
            yield self._time, self._splitter.finish()

    def _open(self) -> None:
        with suppress(FileNotFoundError):
            # Opening a named pipe would block.
            handle = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            if stat.S_ISREG(os.fstat(handle).st_mode):
                self._handle = handle
            else:
                os.close(handle)

    def close(self) -> None:
        if self._handle is not None:
            os.close(self._handle)


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
