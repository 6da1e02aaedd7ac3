"""The memory of buffers: large pieces are copied and hashed where they are, without holding the interpreter lock."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator
from contextlib import contextmanager

from .store import Buffer

# ctypes releases the interpreter lock while it runs.
copy = ctypes.memmove


class _PyBuffer(ctypes.Structure):
    """CPython's Py_buffer, part of its stable ABI."""

    _fields_ = (
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.py_object),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    )


def flat(part: Buffer) -> memoryview:
    """Return a buffer as contiguous bytes, without a copy."""
    view = memoryview(part)
    if view.ndim == 1 and view.format == "B":
        return view
    # An empty view cannot be cast if one of its dimensions is 0.
    return view.cast("B") if view.nbytes else memoryview(b"")


@contextmanager
def addressed(part: Buffer) -> Iterator[int]:
    """Yield the address of contiguous bytes, which neither move nor disappear meanwhile."""
    view = _PyBuffer()
    ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(part), ctypes.byref(view), 0)
    try:
        yield view.buf or 0
    finally:
        ctypes.pythonapi.PyBuffer_Release(ctypes.byref(view))


class TransferBuffer:
    """Page-aligned memory with pages that exist from the beginning: a disk can write it without the page cache."""

    def __init__(self, size: int) -> None:
        self.view = memoryview(mmap.mmap(-1, size))
        with addressed(self.view) as self.address:
            ctypes.memset(self.address, 0, size)
