"""Parses the body of a multipart upload as it arrives: metadata, then bytes of any length. Lines end in CRLF or in LF."""

from __future__ import annotations

import json
import re
from typing import Any

from .errors import StorageApiError, invalid

_MAX_HEAD_BYTES = 1 << 20
_BOUNDARY = re.compile(r"""boundary=(?:"([^"\r\n]+)"|'([^'\r\n]+)'|([^\s;"']+))""", re.IGNORECASE)
# A boundary, headers, the metadata, a boundary, headers: the groups are the kind of line end, the metadata, the second headers.
_HEAD = rb".*?MARK[ \t]*(\r?\n)(?:[^\r\n][^\n]*\n)*\1(.*?)\1MARK[ \t]*\r?\n((?:[^\r\n][^\n]*\n)*)\1"


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
        self._head = re.compile(_HEAD.replace(b"MARK", re.escape(self._mark)), re.DOTALL)
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
        match = self._head.match(self._buffer)
        if match is None:
            if len(self._buffer) > _MAX_HEAD_BYTES:
                raise _malformed(f"no metadata within its first {_MAX_HEAD_BYTES} bytes")
            return False
        newline, metadata, headers = match.groups()
        pairs = (line.partition(":") for line in headers.decode("latin-1").split("\n"))
        self.metadata = _json_object(metadata)
        self.content_type = {name.strip().lower(): value.strip() for name, _, value in pairs}.get("content-type")
        self._delimiter = newline + self._mark
        self._buffer = self._buffer[match.end() :]
        self.started = True
        return True


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
