"""Validates the fields of JSON from a store: each has its type and is within its bounds, or the object is corrupt."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

from ..errors import CorruptCheckpointError

T = TypeVar("T")
_MOST = 1 << 60


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

    def mapping(self, name: str) -> dict[str, Any]:
        value = self._body.get(name)
        if not isinstance(value, dict):
            raise self._bad(name, "an object")
        return value

    def mapping_or_none(self, name: str) -> dict[str, Any] | None:
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
