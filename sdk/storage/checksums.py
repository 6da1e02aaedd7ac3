"""Checksums: crc32c of large buffers in small pieces, so that other threads keep running; sha256 of files."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from functools import lru_cache
from os import PathLike
from typing import cast

from ..errors import StoreError
from .store import Buffer

# The C function accepts only `bytes`. Copying a piece this small stays in the processor's cache, which costs no more than
# hashing alone, and holds the interpreter lock for about 30 microseconds.
_PIECE = 256 << 10
_READ_BYTES = 1 << 20


def sha256(path: str | PathLike[str]) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(_READ_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def crc32c(parts: Iterable[Buffer], crc: int = 0) -> int:
    """Return the crc32c of several buffers in a row; `crc` is that of the bytes before them."""
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
    """Return a buffer as contiguous bytes, without a copy."""
    view = memoryview(part)
    if view.ndim == 1 and view.format == "B":
        return view
    # An empty view cannot be cast if one of its dimensions is 0.
    return view.cast("B") if view.nbytes else memoryview(b"")


@lru_cache(maxsize=1)
def _extend() -> Callable[[int, bytes], int]:
    try:
        import google_crc32c
    except ImportError:
        raise StoreError(
            "Checkpoints need the package google-crc32c, which google-cloud-storage installs; this environment has neither. "
            "Next: add google-cloud-storage to the requirements."
        ) from None
    return cast("Callable[[int, bytes], int]", google_crc32c.extend)
