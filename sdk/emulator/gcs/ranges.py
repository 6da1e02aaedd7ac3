"""The headers Range of a download and Content-Range of a resumable upload."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .errors import StorageApiError, invalid

_RANGE = re.compile(r"bytes=(\d*)-(\d*)")
_CONTENT_RANGE = re.compile(r"bytes (?:(\d{1,19})-(\d{1,19})|\*)/(\d{1,19}|\*)")


def parse_range(header: str | None, size: int) -> tuple[int, int] | None:
    """Return (start, stop) of the bytes that a Range names; None for all of them, also if the Range is malformed."""
    match = _RANGE.fullmatch((header or "").strip())
    if match is None or not any(match.groups()):
        return None
    first, last = match.groups()
    if not first:
        start, stop = max(size - int(last), 0), size
    else:
        start, stop = int(first), min(int(last) + 1, size) if last else size
        if last and int(last) < start:
            return None
    if start >= stop:
        message = "The requested range cannot be satisfied."
        raise StorageApiError(416, "requestedRangeNotSatisfiable", message, {"Content-Range": f"bytes */{size}"})
    return start, stop


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """The bytes in the body of a request of a resumable upload; None for what its Content-Range leaves open."""

    start: int | None
    stop: int | None
    total: int | None


def parse_content_range(header: str | None) -> Chunk:
    """Return what a Content-Range declares. Without one the body is the whole object; `bytes */...` has no bytes."""
    if header is None:
        return Chunk(start=0, stop=None, total=None)
    match = _CONTENT_RANGE.fullmatch(header.strip())
    if match is None:
        raise invalid(f"Failed to parse Content-Range header. Received: {header!r}.")
    first, last, total = match.groups()
    size = None if total == "*" else int(total)
    if first is None:
        return Chunk(start=None, stop=None, total=size)
    start, stop = int(first), int(last) + 1
    if stop <= start or (size is not None and stop > size):
        raise invalid(f"Failed to parse Content-Range header. Received: {header!r}.")
    return Chunk(start=start, stop=stop, total=size)
