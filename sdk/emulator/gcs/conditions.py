"""Preconditions: they hold only if no other client came between a read and a write."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from .errors import StorageApiError, invalid

_FAILED = "At least one of the pre-conditions you specified did not hold."


class _Versioned(Protocol):
    @property
    def metageneration(self) -> int: ...


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """The preconditions; None is no condition. A generation of 0 means that the object does not exist."""

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
        actual = (generation, metageneration, etag)
        required = (self.generation, self.metageneration, self.etag)
        excluded = (self.not_generation, self.not_metageneration, self.not_etag)
        if any(condition not in (None, "*", value) for condition, value in zip(required, actual, strict=True)):
            raise StorageApiError(412, _FAILED)
        if any(unwanted is not None and unwanted == value for unwanted, value in zip(excluded, actual, strict=True)):
            raise StorageApiError(304 if reading else 412, _FAILED)


def parse(query: Mapping[str, str], headers: Mapping[str, str] | None = None, *, prefix: str = "if") -> Conditions:
    """Return the conditions of a request; `prefix` is "ifSource" for conditions on the source of a copy."""
    match, unlike = (headers or {}).get("if-match"), (headers or {}).get("if-none-match")
    return Conditions(
        generation=number(query, f"{prefix}GenerationMatch"),
        not_generation=number(query, f"{prefix}GenerationNotMatch"),
        metageneration=number(query, f"{prefix}MetagenerationMatch"),
        not_metageneration=number(query, f"{prefix}MetagenerationNotMatch"),
        etag=match.strip('"') if match else None,
        not_etag=unlike.strip('"') if unlike else None,
    )


def number(parameters: Mapping[str, object], name: str = "generation") -> int | None:
    if parameters.get(name) is None:
        return None
    text = str(parameters[name])
    if text.isascii() and text.isdigit() and len(text) < 20:
        return int(text)
    raise invalid(f"{name} is a whole number from 0. Received: {text!r}.")
