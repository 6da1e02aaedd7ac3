"""The contents of one checkpoint: named arrays and named blobs. No framework is imported here."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ..errors import InputError

_BLOB = re.compile(r"[a-z0-9_.-]{1,60}")


@dataclass(frozen=True)
class Array:
    """One array.

    Args:
        path: its name, unique in a checkpoint.
        dtype: the name of its type, interpreted by the reader.
        data: returns its bytes, C-contiguous; called once, in the background.
    """

    path: str
    dtype: str
    shape: tuple[int, ...]
    data: Callable[[], memoryview]


@dataclass(frozen=True)
class Contents:
    """All of one checkpoint.

    Args:
        arrays: written by rank 0 only.
        blobs: small states by name ("rng", "data", "callbacks"); every task writes its own.
    """

    arrays: tuple[Array, ...] = ()
    blobs: Mapping[str, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        seen: set[str] = set()
        twice = sorted({a.path for a in self.arrays if a.path in seen or seen.add(a.path)})  # type: ignore[func-returns-value]
        problems = [f"Two arrays of the checkpoint have the name {path!r}." for path in twice]
        problems += [
            f"The name of a blob may hold lowercase letters, digits, dots, dashes and underscores. Received: {name!r}."
            for name in self.blobs
            if not _BLOB.fullmatch(name)
        ]
        if problems:
            raise InputError(problems)
