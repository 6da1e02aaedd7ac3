"""The format of every JSON object in a store: a first line with the crc32c of the rest, then the body."""

from __future__ import annotations

import json
import re
from typing import Any

from ..errors import CorruptCheckpointError, FutureFormatError
from ..storage.checksums import crc32c

VERSION = 1
_HEAD = re.compile(rb'\{"podlift": "([a-z]+)", "crc32c": "([0-9a-f]{8})"\}\n')


def wrap(kind: str, body: dict[str, Any]) -> bytes:
    """Return the bytes of a "manifest", "lease", "opening", "receipt", "pin" or "note"."""
    text = json.dumps({"format_version": VERSION, **body}, allow_nan=False, ensure_ascii=False).encode() + b"\n"
    return f'{{"podlift": "{kind}", "crc32c": "{crc32c([text]):08x}"}}\n'.encode() + text


def unwrap(kind: str, data: bytes | bytearray | memoryview) -> dict[str, Any]:
    """Return the body of an object.

    Raises:
        CorruptCheckpointError: `wrap` did not write these bytes for that kind.
        FutureFormatError: a newer podlift wrote them.
    """
    head = _HEAD.match(bytes(data[:64]))
    if not head or head[1].decode() != kind:
        raise CorruptCheckpointError(f"It does not start like a {kind}.")
    text = bytes(data[head.end() :])
    if crc32c([text]) != int(head[2], 16):
        raise CorruptCheckpointError(f"The {kind} is damaged: its crc32c differs from the one that was written.")
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CorruptCheckpointError(f"The {kind} is not valid JSON: {error}.") from None
    version = body.get("format_version") if isinstance(body, dict) else None
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise CorruptCheckpointError(f"The {kind} has no valid format_version.")
    if version > VERSION:
        raise FutureFormatError(
            f"The {kind} was written by a newer podlift: its format is {version}; this podlift reads {VERSION} and older. "
            "Nothing was changed. Next: install the newer podlift."
        )
    return body  # type: ignore[no-any-return]
