"""Parts of one task's log: lines before or after a place in it, or lines with a word. Never the whole file in memory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from ..storage import posix

# Read at once, to show lines and to look for a word.
_CHUNK_BYTES, _SEARCH_BYTES = 1 << 18, 1 << 20


@dataclass(frozen=True, kw_only=True)
class LogPage:
    """Lines of a log, as a terminal would show them, and the bytes of the file where they begin and end.

    Args:
        skipped: lines between the requested place and these are left out.
    """

    lines: Sequence[str] = ()
    begin: int = 0
    end: int = 0
    skipped: bool = False


def before(path: str, most: int, offset: int | None = None) -> LogPage:
    """Return the last lines that end at a place, or at the end of the log; an unterminated last line is one."""
    with posix.opened(path) as handle:
        size = os.fstat(handle).st_size
        end = size if offset is None else min(max(offset, 0), size)
        start = max(0, end - _CHUNK_BYTES)
        data = os.pread(handle, end - start, start)
    if start and b"\n" in data:
        # The first line began before the chunk.
        cut = data.index(b"\n") + 1
        start, data = start + cut, data[cut:]
    lines = data.removesuffix(b"\n").split(b"\n") if data else []
    left = sum(len(line) + 1 for line in lines[:-most])
    return LogPage(lines=[*map(_visible_text, lines[-most:])], begin=start + left, end=start + len(data))


def after(path: str, most: int, offset: int) -> LogPage:
    """Return the whole lines after a place; if they are many, or the log was restarted, its last ones."""
    with posix.opened(path) as handle:
        size = os.fstat(handle).st_size
        data = os.pread(handle, _CHUNK_BYTES, offset) if offset <= size <= offset + _CHUNK_BYTES else None
    if data is None or data.count(b"\n") > most:
        last = before(path, most)
        return LogPage(lines=last.lines, begin=last.begin, end=last.end, skipped=True)
    whole, newline, _ = data.rpartition(b"\n")
    lines = whole.split(b"\n") if newline else []
    return LogPage(lines=[*map(_visible_text, lines)], begin=offset, end=offset + len(whole) + len(newline))


def matching(path: str, word: str, most: int) -> LogPage:
    """Return the last lines that have a word, without regard to the case of ASCII letters."""
    needle, lines = word.lower().encode("utf-8", "replace"), list[bytes]()
    with posix.opened(path) as handle:
        size = start = os.fstat(handle).st_size
        rest = b""
        while start > 0 and len(lines) <= most:
            end, start = start, max(0, start - _SEARCH_BYTES)
            data = os.pread(handle, end - start, start) + rest
            first, _, whole = data.partition(b"\n") if start else (b"", b"", data)
            rest = first
            if len(first) >= _SEARCH_BYTES:
                # So long a line is looked through in parts.
                rest, whole = b"", data
            lower = whole.lower()
            if needle in lower:
                both = zip(whole.split(b"\n"), lower.split(b"\n"), strict=True)
                lines[:0] = [line for line, low in both if needle in low]
    return LogPage(lines=[*map(_visible_text, lines[-most:])], begin=start, end=size, skipped=len(lines) > most)


def _visible_text(line: bytes) -> str:
    # Progress bars go back to the beginning of their line.
    return line.rstrip(b"\r\b").rpartition(b"\r")[2].decode("utf-8", "replace")
