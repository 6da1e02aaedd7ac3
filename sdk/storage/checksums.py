"""Checksums: crc32c of large buffers, a small piece at a time, so that other threads train on meanwhile; sha256 of files."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from functools import lru_cache
from os import PathLike
from typing import cast

from ..errors import StoreError
from .store import Buffer

# The C function takes only `bytes`. A piece this small is copied from memory into the processor's cache and hashed there,
# which costs no more than hashing alone, and holds the interpreter for some 30 microseconds.
_PIECE = 256 << 10
_READ_BYTES = 1 << 20


def sha256(path: str | PathLike[str]) -> str:
    """Return the sha256 of a file, in hex; raises OSError where it cannot be read."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(_READ_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def crc32c(parts: Iterable[Buffer], crc: int = 0) -> int:
    """Return the crc32c of several buffers, one after the other.

    Args:
        parts: buffers whose bytes lie in one run of memory.
        crc: of what came before them.
    """
    extend = _extend()
    for part in parts:
        if isinstance(part, bytes) and len(part) <= _PIECE:
            crc = extend(crc, part)
            continue
        view = flat(part)
        for start in range(0, len(view), _PIECE):
            crc = extend(crc, bytes(view[start : start + _PIECE]))
    return crc


def flat(part: Buffer) -> memoryview:
    """Return a buffer as bytes in a row, without a copy."""
    view = memoryview(part)
    if view.ndim == 1 and view.format == "B":
        return view
    # A view of no elements cannot be cast when one of its dimensions is 0.
    return view.cast("B") if view.nbytes else memoryview(b"")


@lru_cache(maxsize=1)
def _extend() -> Callable[[int, bytes], int]:
    try:
        import google_crc32c
    except ImportError:
        raise StoreError(
            "Checkpoints need the package google-crc32c, which comes with google-cloud-storage, and this environment has "
            "neither. Add google-cloud-storage to the requirements."
        ) from None
    return cast("Callable[[int, bytes], int]", google_crc32c.extend)
