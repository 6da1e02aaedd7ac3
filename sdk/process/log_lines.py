"""Cuts the raw bytes of a log into lines: whatever the bytes are, however they come in, with one line in memory at most."""

from __future__ import annotations

import re
from collections.abc import Iterator

# A line's text, and its end as `LogLine` has it.
Line = tuple[str, str]

# What a program prints without an end is not waited for any longer than this.
MAX_LINE_BYTES = 1 << 20
# A carriage return before a line feed belongs to it. One behind all that was read may have its line feed coming.
_END = re.compile(rb"(\r*\n|\r+(?=[^\r\n]))")


class Cutter:
    """Cuts one file: give it the bytes as they come."""

    def __init__(self) -> None:
        self._rest = b""

    def cut(self, data: bytes) -> list[Line]:
        """Return the lines that have ended, and the pieces of one that is too long."""
        data = self._rest + data
        # Nearly every log is like this, and it takes a fifth of the time.
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

    def end(self) -> list[Line]:
        """Return what has no end, when no more is to come."""
        content, self._rest = self._rest, b""
        text = _text(content.rstrip(b"\r").rstrip(b"\b") if content.endswith(b"\r") else content)
        return [(text, "")] if text else []


def _ended(content: bytes, end: str) -> list[Line]:
    *pieces, last = _pieces(content)
    lines = [(_text(piece), "") for piece in pieces]
    if end == "\r":
        # Keras goes back by so many backspaces, and by a carriage return as well.
        last = last.rstrip(b"\b")
        if not last:
            return lines
    return [*lines, (_text(last), end)]


def _pieces(content: bytes) -> Iterator[bytes]:
    """Yield what is too long in pieces, none of which ends inside a character."""
    start = 0
    while len(content) - start > MAX_LINE_BYTES:
        stop = start + MAX_LINE_BYTES
        back = next((n for n in range(4) if content[stop - n] & 0xC0 != 0x80), 0)
        yield content[start : stop - back]
        start = stop - back
    yield content[start:]


def _text(content: bytes) -> str:
    return content.decode("utf-8", "replace")
