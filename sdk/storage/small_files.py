"""Reads a small file from a well-known place, whatever was put there."""

from __future__ import annotations

import os
import stat
from pathlib import Path

_MOST = 1 << 24


def read(path: Path, most: int = _MOST) -> bytes:
    """Return the bytes of a file; OSError for anything else, such as a pipe, or if it is too large."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        about = os.fstat(file.fileno())
        if not stat.S_ISREG(about.st_mode):
            raise OSError(f"{str(path)!r} is not a file")
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(f"{str(path)!r} has more than {most} bytes")
    return data
