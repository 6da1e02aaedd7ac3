"""Preconditions: they hold only if no other client came between a read and a write."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from .errors import StorageApiError, invalid

NAMES = ("GenerationMatch", "GenerationNotMatch", "MetagenerationMatch", "MetagenerationNotMatch")
_FAILED = "At least one of the pre-conditions you specified did not hold."


class _Versioned(Protocol):
    @property
    def metageneration(self) -> int: ...


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """What must hold; None is no condition. A generation of 0 means that the object does not exist."""

    generation: int | None = None
    not_generation: int | None = None
    metageneration: int | None = None
    not_metageneration: int | None = None
    etag: str | None = None
    not_etag: str | None = None

    def check(self, current: _Versioned | None, *, reading: bool = False) -> None:
        generation = getattr(current, "generation", None) if current is not None else 0
        metageneration = current.metageneration if current is not None else None
        etag = getattr(current, "etag", None)
        for required, actual in (
            (self.generation, generation),
            (self.metageneration, metageneration),
            (self.etag, etag),
        ):
            if required is not None and required != actual and required != "*":
                raise StorageApiError(412, "conditionNotMet", _FAILED)
        for excluded, actual in (
            (self.not_generation, generation),
            (self.not_metageneration, metageneration),
            (self.not_etag, etag),
        ):
            if excluded is not None and excluded == actual:
                raise StorageApiError(304 if reading else 412, "conditionNotMet", _FAILED)


def parse(query: Mapping[str, str], headers: Mapping[str, str] | None = None, *, prefix: str = "if") -> Conditions:
    """Return the conditions of a request; `prefix` is "ifSource" for those on the source of a copy."""
    numbers = []
    for name in NAMES:
        text = query.get(prefix + name)
        numbers.append(None if text is None else _number(prefix + name, text))
    match, unlike = (headers or {}).get("if-match"), (headers or {}).get("if-none-match")
    return Conditions(
        generation=numbers[0],
        not_generation=numbers[1],
        metageneration=numbers[2],
        not_metageneration=numbers[3],
        etag=match.strip('"') if match else None,
        not_etag=unlike.strip('"') if unlike else None,
    )


def source_conditions(given: Any) -> Conditions:
    number = given.get("ifGenerationMatch") if isinstance(given, dict) else None
    return Conditions(generation=None if number is None else _number("ifGenerationMatch", str(number)))


def requested_generation(query: Mapping[str, str], name: str = "generation") -> int | None:
    """Return the generation that a request names; None for the live one."""
    text = query.get(name)
    return None if text is None else _number(name, text)


def _number(name: str, text: str) -> int:
    if text.isascii() and text.isdigit() and len(text) < 20:
        return int(text)
    raise invalid(f"{name} is a whole number from 0. Received: {text!r}.")
