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
from .raw_memory import addressed, flat
from .store import Buffer

# The extension accepts only `bytes`, and holds the interpreter lock. Copying a piece this small stays in the processor's cache,
# and takes about 30 microseconds. Larger parts are hashed where they are by the library, which does not hold the lock.
_PIECE = 256 << 10
_LARGE = 64 << 10
_READ_BYTES = 1 << 20
# The check value of CRC-32C.
_CHECK = (b"123456789", 0xE3069283)


def sha256(path: str | PathLike[str]) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(_READ_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def crc32c(parts: Iterable[Buffer], crc: int = 0) -> int:
    """Return the crc32c of several buffers in a row; `crc` is the crc32c of the bytes before them."""
    extend, in_place = _function().extend, _function().in_place
    for part in parts:
        if isinstance(part, bytes) and len(part) <= _LARGE:
            crc = extend(crc, part)
            continue
        view = flat(part)
        if in_place is not None and len(view) > _LARGE:
            with addressed(view) as address:
                crc = in_place(crc, address, len(view))
            continue
        for start in range(0, len(view), _PIECE):
            crc = extend(crc, bytes(view[start : start + _PIECE]))
    return crc


@dataclass(frozen=True)
class _Crc32c:
    extend: Callable[[int, bytes], int]
    in_place: Callable[[int, int, int], int] | None  # of a number of bytes at an address
    compiled: bool


def is_compiled() -> bool:
    """True if crc32c is machine code; in pure Python it would take longer than a training."""
    try:
        return _function().compiled
    except StoreError:
        return False


def search_again() -> None:
    """Forget the search result, because a package was installed since."""
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
    in_place = _library()
    if google_crc32c.implementation == "c":
        return _Crc32c(extend, in_place, compiled=True)
    if in_place is None:
        return _Crc32c(extend, None, compiled=False)

    def extended(crc: int, data: bytes) -> int:
        with addressed(data) as address:
            return in_place(crc, address, len(data))

    return _Crc32c(extended, in_place, compiled=True)


def _library() -> Callable[[int, int, int], int] | None:
    """Return the function of the C library in a wheel of google-crc32c, which works with any Python of the same platform."""
    for folder in sys.path:
        for path in glob(f"{escape(folder)}/google_crc32c.libs/libcrc32c*.so*"):
            try:
                extend = ctypes.CDLL(path).crc32c_extend
            except (OSError, AttributeError):
                continue  # of another platform
            extend.restype, extend.argtypes = ctypes.c_uint32, (ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t)
            with addressed(_CHECK[0]) as address:
                if extend(0, address, len(_CHECK[0])) == _CHECK[1]:
                    return cast("Callable[[int, int, int], int]", extend)
    return None
