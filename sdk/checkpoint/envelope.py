"""Every JSON object that we write: a first line with the crc32c of all that follows it, then the body."""

from __future__ import annotations

import json
import re
from typing import Any

from ..errors import CorruptCheckpointError, FutureFormatError
from ..storage.checksums import crc32c

VERSION = 1
_HEAD = re.compile(rb'\{"podlift": "([a-z]+)", "crc32c": "([0-9a-f]{8})"\}\n')


def wrap(kind: str, body: dict[str, Any]) -> bytes:
    """Return the bytes of an object.

    Args:
        kind: "manifest", "lease", "opening", "receipt", "pin" or "note".
        body: what JSON can say.

    Raises:
        ValueError, TypeError: it holds something that JSON cannot say.
    """
    text = json.dumps({"format_version": VERSION, **body}, allow_nan=False, ensure_ascii=False).encode() + b"\n"
    return f'{{"podlift": "{kind}", "crc32c": "{crc32c([text]):08x}"}}\n'.encode() + text


def unwrap(kind: str, data: bytes | bytearray | memoryview) -> dict[str, Any]:
    """Return the body of an object.

    Raises:
        CorruptCheckpointError: these are not the bytes that `wrap` has made for that kind.
        FutureFormatError: a newer podlift wrote them.
    """
    head = _HEAD.match(bytes(data[:64]))
    if not head or head[1].decode() != kind:
        raise CorruptCheckpointError(f"It does not start as a {kind} does.")
    text = bytes(data[head.end() :])
    if crc32c([text]) != int(head[2], 16):
        raise CorruptCheckpointError(f"The {kind} is damaged: its crc32c is not the one that it was written with.")
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CorruptCheckpointError(f"The {kind} is no JSON: {error}.") from None
    version = body.get("format_version") if isinstance(body, dict) else None
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise CorruptCheckpointError(f"The {kind} does not say which format it has.")
    if version > VERSION:
        raise FutureFormatError(
            f"The {kind} was written by a newer podlift: its format is {version}, and this podlift knows {VERSION} and "
            "older. Nothing was changed. Install the newer podlift to read it."
        )
    return body  # type: ignore[no-any-return]
