"""Locks that the kernel releases when their holder dies, and temporary files that a successor may remove."""

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
def folder_lock(folder: str) -> Iterator[None]:
    """Hold the lock of a folder; StoreError if another process has held it for a minute."""
    # A new handle each time: the lock belongs to the open file, so threads exclude each other too.
    handle = os.open(f"{folder}/{_LOCK}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        until = time.monotonic() + _WAIT_S
        while not _locked(handle):
            if time.monotonic() > until:
                raise StoreError(
                    f"Another process has held the lock {folder}/{_LOCK} for {_WAIT_S:.0f} s. Is a writer suspended? Next: "
                    f"`fuser {folder}/{_LOCK}` shows it."
                )
            time.sleep(_POLL_S)
        yield
    finally:
        os.close(handle)


@contextmanager
def file_lock(path: str, *, wait: bool) -> Iterator[bool]:
    """Hold the lock of a file, which is created if needed. Without `wait`, yield False if another process holds it."""
    posix.make_folders(os.path.dirname(path))
    with open(path, "ab") as lock:
        if wait:
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield wait or _locked(lock.fileno())


@dataclass(frozen=True)
class TemporaryFile:
    """A temporary file, locked by its writer as long as it exists."""

    path: str
    handle: int

    def drop(self) -> None:
        """Remove the temporary name; the object that it was linked or renamed to stays."""
        with suppress(FileNotFoundError):
            os.unlink(self.path)
        os.close(self.handle)


class TemporaryFiles:
    """Creates the temporary files of one store; the first one removes leftovers of killed writers."""

    def __init__(self, root: str) -> None:
        self._folder = f"{root}/{_PARTS}"
        self._swept = False

    def new(self) -> TemporaryFile:
        posix.make_folders(self._folder)
        if not self._swept:
            self._swept = True
            self._sweep()
        while True:
            path = f"{self._folder}/{uuid.uuid4().hex}"
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            # A sweep may have removed it before we locked it.
            if _locked(handle) and os.fstat(handle).st_nlink:
                return TemporaryFile(path, handle)
            os.close(handle)

    def _sweep(self) -> None:
        for name in os.listdir(self._folder):
            path = f"{self._folder}/{name}"
            # A file that cannot be opened or locked is left to another sweep: it is garbage at worst.
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
