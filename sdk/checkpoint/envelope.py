"""The format of every JSON object in a store: a line with the crc32c of the rest, then the body, whose fields are validated."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from ..errors import CorruptCheckpointError, FutureFormatError
from ..storage.checksums import crc32c

VERSION = 1
T = TypeVar("T")
_MOST = 1 << 60
_HEAD = re.compile(rb'\{"podlift": "([a-z]+)", "crc32c": "([0-9a-f]{8})"\}\n')


def wrap(kind: str, body: Mapping[str, object]) -> bytes:
    """Return the bytes of a "manifest", "lease", "opening", "receipt", "pin" or "note"."""
    text = json.dumps({"format_version": VERSION, **body}, allow_nan=False, ensure_ascii=False).encode() + b"\n"
    return f'{{"podlift": "{kind}", "crc32c": "{crc32c([text]):08x}"}}\n'.encode() + text


def unwrap(kind: str, data: bytes | bytearray | memoryview) -> dict[str, object]:
    """Return the body that `wrap` wrote for that kind, or raise CorruptCheckpointError or FutureFormatError."""
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


class Fields:
    """The fields of one object; `what` names it in errors."""

    def __init__(self, body: Any, what: str) -> None:
        if not isinstance(body, dict):
            raise CorruptCheckpointError(f"{what} is not a JSON object.")
        self._body = body
        self._what = what

    def count(self, name: str, least: int = 0) -> int:
        value = self._body.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value < _MOST:
            raise self._bad(name, f"an integer of at least {least}")
        return value

    def number(self, name: str) -> float:
        value = self._body.get(name)
        if not isinstance(value, (int, float)) or isinstance(value, bool) or abs(value) > _MOST:
            raise self._bad(name, "a number")
        return float(value)

    def text(self, name: str, pattern: str = r".*") -> str:
        """A text that matches the whole pattern."""
        value = self._body.get(name)
        if not isinstance(value, str) or not re.fullmatch(pattern, value, re.DOTALL):
            raise self._bad(name, "a string" if pattern == r".*" else f"a string of the form {pattern}")
        return value

    def text_or_none(self, name: str, pattern: str = r".*") -> str | None:
        return None if self._body.get(name) is None else self.text(name, pattern)

    def flag(self, name: str) -> bool:
        value = self._body.get(name)
        if not isinstance(value, bool):
            raise self._bad(name, "true or false")
        return value

    def mapping(self, name: str) -> dict[str, object]:
        value = self._body.get(name)
        if not isinstance(value, dict):
            raise self._bad(name, "an object")
        return value

    def mapping_or_none(self, name: str) -> dict[str, object] | None:
        return None if self._body.get(name) is None else self.mapping(name)

    def each(self, name: str, make: Callable[[Any], T]) -> tuple[T, ...]:
        """A list, each item converted by `make`."""
        value = self._body.get(name)
        if not isinstance(value, list):
            raise self._bad(name, "a list")
        return tuple(make(item) for item in value)

    def any(self, name: str) -> Any:
        return self._body.get(name)

    def _bad(self, name: str, wanted: str) -> CorruptCheckpointError:
        shown = repr(self._body.get(name))
        shown = shown if len(shown) <= 100 else f"{shown[:100]}..."
        return CorruptCheckpointError(f"{self._what} was not written by podlift: {name!r} is {shown}, not {wanted}.")
