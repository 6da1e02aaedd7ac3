"""Locks that a killed process leaves to nobody, and files in the making that its successor may remove."""

from __future__ import annotations

import fcntl
import os
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from ..errors import StoreError
from . import posix

_LOCK = ".lock"
_PARTS = ".parts"
_WAIT_S = 60.0
_POLL_S = 0.005


@contextmanager
def held(folder: str) -> Iterator[None]:
    """Hold the lock of a folder; the kernel releases it when the holder dies.

    Raises:
        StoreError: somebody has held it for a minute.
    """
    # Each time a handle of its own: the lock belongs to the open file, so that threads wait for each other too.
    handle = os.open(f"{folder}/{_LOCK}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        until = time.monotonic() + _WAIT_S
        while not _locked(handle):
            if time.monotonic() > until:
                raise StoreError(
                    f"The lock {folder}/{_LOCK} has been held by another process for {_WAIT_S:.0f} s. Is a process that "
                    f"writes there suspended? `fuser {folder}/{_LOCK}` names it."
                )
            time.sleep(_POLL_S)
        yield
    finally:
        os.close(handle)


@dataclass(frozen=True)
class TemporaryFile:
    """A file in the making, locked by its writer as long as it is one."""

    path: str
    handle: int

    def drop(self) -> None:
        """Forget the name in the making; the object that it was linked or renamed to stays."""
        with suppress(FileNotFoundError):
            os.unlink(self.path)
        os.close(self.handle)


class TemporaryFiles:
    """Makes the files in the making of one store; the first one sweeps away what killed writers have left."""

    def __init__(self, root: str) -> None:
        self._folder = f"{root}/{_PARTS}"
        self._swept = False

    def new(self) -> TemporaryFile:
        """Create an empty one."""
        posix.make_folders(self._folder)
        if not self._swept:
            self._swept = True
            self._sweep()
        while True:
            path = f"{self._folder}/{uuid.uuid4().hex}"
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            # A sweeper may have been faster than our lock.
            if _locked(handle) and os.fstat(handle).st_nlink:
                return TemporaryFile(path, handle)
            os.close(handle)

    def _sweep(self) -> None:
        for name in os.listdir(self._folder):
            path = f"{self._folder}/{name}"
            # Whoever cannot open or lock it leaves it to somebody who can: it is garbage at worst.
            with suppress(OSError):
                handle = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
                try:
                    if _locked(handle):
                        os.unlink(path)
                finally:
                    os.close(handle)


def _locked(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
