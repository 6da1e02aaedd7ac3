"""The format of every JSON object in a store: a line with the crc32c of the rest, then the body, with validated fields."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar

from ..errors import CorruptCheckpointError, FutureFormatError
from ..job.wire import decode
from ..storage.checksums import crc32c
from ..storage.store import Buffer

VERSION = 1
T = TypeVar("T")
_MOST = 1 << 60
_NO_NUMBERS = ("str", "str | None", "bool", "Any")  # types of fields
_HEAD = re.compile(rb'\{"podlift": "([a-z]+)", "crc32c": "([0-9a-f]{8})"\}\n')


def wrap(kind: str, body: Mapping[str, object]) -> bytes:
    """Return the bytes of a "manifest", "lease", "opening", "receipt", "pin" or "note"."""
    text = json.dumps({"format_version": VERSION, **body}, allow_nan=False, ensure_ascii=False).encode() + b"\n"
    return f'{{"podlift": "{kind}", "crc32c": "{crc32c([text]):08x}"}}\n'.encode() + text


def unwrap(kind: str, data: Buffer) -> dict[str, object]:
    """Return the body that `wrap` wrote for that kind, or raise CorruptCheckpointError or FutureFormatError."""
    head = _HEAD.match(bytes(data[:64]))
    if not head or head[1].decode() != kind:
        raise CorruptCheckpointError(f"It does not start like a {kind}.")
    text = bytes(data[head.end() :])
    if crc32c([text]) != int(head[2], 16):
        raise CorruptCheckpointError(f"The {kind} is damaged: its crc32c differs from the one that was written.")
    try:
        body = json.loads(text.decode())
        if rb"\u" in text:
            # Half of a surrogate pair could be read, but neither written nor printed.
            json.dumps(body, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise CorruptCheckpointError(f"The {kind} is not valid JSON: {error}.") from None
    version = body.get("format_version") if isinstance(body, dict) else None
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise CorruptCheckpointError(f"The {kind} has no valid format_version.")
    if version > VERSION:
        raise FutureFormatError(
            f"The {kind} was written by a newer podlift: its format is {version}; this podlift reads {VERSION}. "
            "Nothing was changed. Next: install the newer podlift."
        )
    return body  # type: ignore[no-any-return]


def fields_of(body: Mapping[str, object], kind: str, cls: type[T]) -> T:
    """Return a dataclass from a body, or raise CorruptCheckpointError.

    Numbers are from 0 to 2**60, except those in mappings: a metric may be negative, and as large as a float.
    """
    try:
        value = decode(cls, body)
    except (TypeError, RecursionError) as error:
        raise foreign(kind, str(error)) from None
    _check_numbers(value, kind)
    return value


def text_of(data: Buffer, kind: str, name: str) -> str:
    """Return the one text of a "pin" or a "note"."""
    value = unwrap(kind, data).get(name)
    if not isinstance(value, str):
        raise foreign(kind, f"{name!r} is {value!r:.100}")
    return value


def _check_numbers(value: Any, kind: str) -> None:
    for name in _with_numbers(value.__class__):
        attribute = getattr(value, name)
        for item in attribute if type(attribute) is tuple else (attribute,):
            if type(item) is int or type(item) is float:
                if not 0 <= item < _MOST:
                    raise foreign(kind, f"{name!r} is {item!r:.100}, not a number from 0 to 2**60")
            elif dataclasses.is_dataclass(item):
                _check_numbers(item, kind)


@cache
def _with_numbers(cls: Any) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(cls) if field.type not in _NO_NUMBERS)


def foreign(kind: str, problem: str) -> CorruptCheckpointError:
    """Return the error for an object with the right crc32c that podlift cannot have written."""
    return CorruptCheckpointError(f"The {kind} was not written by podlift: {problem}.")
