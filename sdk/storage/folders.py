"""Lists, measures and removes folders without following links."""

from __future__ import annotations

import math
import os
import stat
from contextlib import suppress
from pathlib import Path

from . import own_folders

# A path and its lstat.
FolderEntry = tuple[Path, os.stat_result]


def entries(folder: Path) -> list[FolderEntry]:
    """Return the entries of a folder by name; empty if it does not exist. OSError: it is a link, or cannot be read."""
    if folder.is_symlink():
        raise OSError(f"{str(folder)!r} is a link, and links are not followed")
    listed = []
    with suppress(FileNotFoundError, NotADirectoryError):
        for name in sorted(os.listdir(folder)):
            # It may have been removed meanwhile.
            with suppress(FileNotFoundError):
                listed.append((folder / name, (folder / name).lstat()))
    return listed


def extent(path: Path) -> tuple[int, float]:
    """Return the bytes of a file or folder, and the unix time of its latest change; infinity if it no longer exists."""
    try:
        info = path.lstat()
    except FileNotFoundError:
        return 0, math.inf
    if not stat.S_ISDIR(info.st_mode):
        return info.st_size, info.st_mtime
    size_bytes, changed, counted = 0, info.st_mtime, set()
    for here, folders, files in os.walk(path):
        for name in [*folders, *files]:
            try:
                info = os.lstat(os.path.join(here, name))
            except OSError:
                continue
            changed = max(changed, info.st_mtime)
            if not stat.S_ISDIR(info.st_mode) and (info.st_dev, info.st_ino) not in counted:
                size_bytes += info.st_size
                counted.add((info.st_dev, info.st_ino))
    return size_bytes, changed


def remove(path: Path) -> None:
    """Remove a file, or as much of a folder as possible; OSError names the first entry that could not be removed.

    Root also removes files of other users.
    """
    owner = path.lstat().st_uid if os.geteuid() == 0 else None
    own_folders.remove(str(path), private=False, owner=owner)
