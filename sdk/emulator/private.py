"""Folders and databases for the user who started the emulator alone: jobs and buckets hold what their owners keep secret."""

from __future__ import annotations

import os
import stat
from pathlib import Path

# What an emulator has written; a folder with other things in it may be the user's own, or /tmp.
_MARK = "tables.sqlite"
_OTHER_USERS = stat.S_IRWXG | stat.S_IRWXO


def make_data_folder(path: Path) -> None:
    """Make a folder that only this user may enter; one that is there is closed to others, unless it holds foreign files.

    Args:
        path: of the folder, whose parents are made too.

    Raises:
        OSError: it cannot be made.
    """
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    about = path.stat()
    if about.st_uid != os.geteuid() or not about.st_mode & _OTHER_USERS or about.st_mode & stat.S_ISVTX:
        return
    there = [each.name for each in path.iterdir()]
    if not there or _MARK in there:
        path.chmod(0o700)


def make_subfolder(path: Path) -> None:
    """Make a folder of the emulator's own that only this user may enter, whatever it was before.

    Raises:
        OSError: it cannot be made.
    """
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.chmod(0o700)


def create_database(path: Path) -> Path:
    """Make the file of an SQLite database that only this user may read, before SQLite would; what it adds gets its mode.

    Raises:
        OSError: it cannot be made.
    """
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    for suffix in ("", "-wal", "-shm", "-journal"):
        file = path.with_name(path.name + suffix)
        if file.exists():
            file.chmod(0o600)
    return path
