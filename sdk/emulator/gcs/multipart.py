"""Parses the body of a multipart upload as it arrives: metadata, then bytes of any length. Lines end in CRLF or in LF."""

from __future__ import annotations

import json
import re
from typing import Any

from .errors import StorageApiError, invalid

_MAX_HEAD_BYTES = 1 << 20
_BOUNDARY = re.compile(r"""boundary=(?:"([^"\r\n]+)"|'([^'\r\n]+)'|([^\s;"']+))""", re.IGNORECASE)


def boundary_of(content_type: str) -> bytes:
    match = _BOUNDARY.search(content_type)
    found = next((group for group in match.groups() if group), "") if match else ""
    if not found or len(found) > 200 or not found.isascii():
        raise _malformed(f"its Content-Type names no boundary: {content_type!r}")
    return found.encode()


class MultipartParser:
    """Accepts the body in pieces of any size and returns the bytes of the object.

    Usage: `data = parser.feed(piece)` for each piece, then `parser.finish()`. `metadata` and `content_type` are known as soon
    as `started` is true. It never holds more than the metadata and a boundary.
    """

    def __init__(self, boundary: bytes) -> None:
        self._mark = b"--" + boundary
        self._buffer = b""
        self._delimiter = b""
        self._ended = False
        self.started = False
        self.metadata: dict[str, Any] = {}
        self.content_type: str | None = None

    def feed(self, piece: bytes) -> bytes:
        """Accept the next piece of the body; return the bytes that certainly belong to the object."""
        if self._ended:
            return b""
        self._buffer += piece
        if not self.started and not self._read_head():
            return b""
        at = self._buffer.find(self._delimiter)
        if at >= 0:
            self._ended = True
            data, self._buffer = self._buffer[:at], b""
            return data
        # The delimiter may have begun in the last bytes.
        keep = min(len(self._delimiter) - 1, len(self._buffer))
        data, self._buffer = self._buffer[: len(self._buffer) - keep], self._buffer[len(self._buffer) - keep :]
        return data

    def finish(self) -> None:
        if not self._ended:
            raise _malformed("it ends before its last boundary" if self.started else "it ends within its metadata")

    def _read_head(self) -> bool:
        """Read both headers and the metadata once all of it has arrived."""
        head = self._head()
        if head is None:
            if len(self._buffer) > _MAX_HEAD_BYTES:
                raise _malformed(f"no metadata within its first {_MAX_HEAD_BYTES} bytes")
            return False
        start, stop, headers, position = head
        self.metadata = _json_object(self._buffer[start:stop])
        self.content_type = headers.get("content-type")
        self._buffer = self._buffer[position:]
        self.started = True
        return True

    def _head(self) -> tuple[int, int, dict[str, str], int] | None:
        """Return where the metadata starts and stops, the headers of the bytes, and where the bytes start."""
        line = self._line_after(self._buffer.find(self._mark))
        if line is None:
            return None
        newline = b"\r\n" if self._buffer[line - 2 : line] == b"\r\n" else b"\n"
        self._delimiter = newline + self._mark
        first = self._headers(line, newline)
        if first is None:
            return None
        stop = self._buffer.find(self._delimiter, first[1])
        line = self._line_after(stop + len(newline) if stop >= 0 else -1)
        second = None if line is None else self._headers(line, newline)
        return None if second is None else (first[1], stop, second[0], second[1])

    def _line_after(self, mark: int) -> int | None:
        if mark < 0:
            return None
        end = self._buffer.find(b"\n", mark + len(self._mark))
        if end >= 0 and self._buffer[mark + len(self._mark) : end].strip():
            raise _malformed("no bytes follow its metadata")
        return end + 1 if end >= 0 else None

    def _headers(self, start: int, newline: bytes) -> tuple[dict[str, str], int] | None:
        """Return the headers that start there, and the position after them."""
        if self._buffer.startswith(newline, start):
            return {}, start + len(newline)
        end = self._buffer.find(newline + newline, start)
        if end < 0:
            return None
        lines = self._buffer[start:end].decode("latin-1").split("\n")
        pairs = (line.partition(":") for line in lines)
        return {name.strip().lower(): value.strip() for name, _, value in pairs}, end + 2 * len(newline)


def _json_object(text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text or b"{}")
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise _malformed("its metadata is not a JSON object")
    return found


def _malformed(why: str) -> StorageApiError:
    return invalid(f"Multipart body is malformed: {why}.")
