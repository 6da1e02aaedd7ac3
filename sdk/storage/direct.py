"""Writes large objects past the page cache.

The cache would copy every byte in the kernel, into pages that it has to find first: most of the CPU time of a checkpoint, taken
from the training. Where a file system does not support this, the bytes are written as usual.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections import deque
from collections.abc import Sequence

from . import posix
from .raw_memory import TransferBuffer, addressed, copy

_FLAG = getattr(os, "O_DIRECT", 0)  # Linux only
_TRANSFER = 4 << 20
# Smaller objects are cheaper in the page cache.
_LEAST = _TRANSFER
# Buffers that no thread is using; appending and popping are atomic.
_free: deque[TransferBuffer] = deque(maxlen=4)
if hasattr(os, "register_at_fork"):  # the parent keeps their memory, and may be writing it
    os.register_at_fork(after_in_child=_free.clear)


def write_all(handle: int, buffers: Sequence[memoryview]) -> None:
    """Write bytes to an empty file completely, as `posix.write_all` does; neither syncs."""
    if sum(len(buffer) for buffer in buffers) < _LEAST or not _set_direct(handle, True):
        return posix.write_all(handle, buffers)
    try:
        transfer = _free.pop()
    except IndexError:
        transfer = TransferBuffer(_TRANSFER)
    try:
        used = _write_whole(handle, buffers, transfer)
        _set_direct(handle, False)
        posix.write_all(handle, [transfer.view[:used]])
    finally:
        _free.append(transfer)


def _write_whole(handle: int, buffers: Sequence[memoryview], transfer: TransferBuffer) -> int:
    """Write everything but the last part of a transfer, and return how many bytes of the buffer that part has."""
    used = 0
    for view in buffers:
        with addressed(view) as address:
            done = 0
            while done < len(view):
                count = min(len(view) - done, _TRANSFER - used)
                copy(transfer.address + used, address + done, count)
                used, done = used + count, done + count
                if used == _TRANSFER:
                    _write(handle, transfer.view)
                    used = 0
    return used


def _write(handle: int, view: memoryview) -> None:
    done = 0
    while done < len(view):
        try:
            done += os.write(handle, view[done:])
        except OSError as error:
            # Some file systems accept the flag and not the writes; and a short write may have ended within a page.
            if error.errno != errno.EINVAL or not fcntl.fcntl(handle, fcntl.F_GETFL) & _FLAG:
                raise
            _set_direct(handle, False)


def _set_direct(handle: int, on: bool) -> bool:
    """Return False if this file system has only cached writes."""
    if not _FLAG:
        return False
    try:
        flags = fcntl.fcntl(handle, fcntl.F_GETFL)
        fcntl.fcntl(handle, fcntl.F_SETFL, flags | _FLAG if on else flags & ~_FLAG)
    except OSError:
        return False
    return True
