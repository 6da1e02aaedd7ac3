"""Checksums: crc32c of large buffers in small pieces, so that other threads keep running; sha256 of files."""

from __future__ import annotations

import ctypes
import hashlib
import importlib
import sys
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from glob import escape, glob
from os import PathLike
from typing import cast

from ..errors import StoreError
from .store import Buffer

# The C function accepts only `bytes`. Copying a piece this small stays in the processor's cache, which costs no more than
# hashing alone, and holds the interpreter lock for about 30 microseconds.
_PIECE = 256 << 10
_READ_BYTES = 1 << 20
# The check value of CRC-32C.
_KNOWN = (b"123456789", 0xE3069283)


def sha256(path: str | PathLike[str]) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(_READ_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def crc32c(parts: Iterable[Buffer], crc: int = 0) -> int:
    """Return the crc32c of several buffers in a row; `crc` is that of the bytes before them."""
    extend = _function().extend
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


@dataclass(frozen=True)
class _Crc32c:
    extend: Callable[[int, bytes], int]
    compiled: bool


def is_compiled() -> bool:
    """True if crc32c is machine code; in pure Python it would take longer than a training."""
    try:
        return _function().compiled
    except StoreError:
        return False


def search_again() -> None:
    """Forget what was found, because a package was installed since."""
    for name in [name for name in sys.modules if name.split(".")[0] == "google_crc32c"]:
        del sys.modules[name]
    importlib.invalidate_caches()
    _function.cache_clear()


@lru_cache(maxsize=1)
def _function() -> _Crc32c:
    with warnings.catch_warnings():
        # Its warning about pure Python.
        warnings.simplefilter("ignore")
        try:
            import google_crc32c
        except ImportError:
            raise StoreError(
                "Checkpoints need the package google-crc32c, which google-cloud-storage installs; this environment has "
                "neither. Next: add google-cloud-storage to the requirements."
            ) from None
    extend = cast("Callable[[int, bytes], int]", google_crc32c.extend)
    if google_crc32c.implementation == "c":
        return _Crc32c(extend, compiled=True)
    library = _library()
    return _Crc32c(library or extend, compiled=library is not None)


def _library() -> Callable[[int, bytes], int] | None:
    """Return the function of the C library in a wheel of google-crc32c, which works with any Python of the same platform."""
    for folder in sys.path:
        for path in glob(f"{escape(folder)}/google_crc32c.libs/libcrc32c*.so*"):
            try:
                extend = ctypes.CDLL(path).crc32c_extend
            except (OSError, AttributeError):
                continue  # of another platform
            extend.restype, extend.argtypes = ctypes.c_uint32, (ctypes.c_uint32, ctypes.c_char_p, ctypes.c_size_t)
            if extend(0, _KNOWN[0], len(_KNOWN[0])) == _KNOWN[1]:
                return lambda crc, data: int(extend(crc, data, len(data)))
    return None
