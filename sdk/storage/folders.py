"""Lists, measures and removes folders without following links."""

from __future__ import annotations

import math
import os
import shutil
import stat
from contextlib import suppress
from pathlib import Path

# A path and its lstat.
FolderEntry = tuple[Path, os.stat_result]


def entries(folder: Path) -> list[FolderEntry]:
    """Return the entries of a folder by name; empty if it does not exist. OSError: it is a link, or cannot be read."""
    if folder.is_symlink():
        raise OSError(f"{str(folder)!r} is a link, and links are not followed")
    found = []
    with suppress(FileNotFoundError, NotADirectoryError):
        for name in sorted(os.listdir(folder)):
            # It may have been removed meanwhile.
            with suppress(FileNotFoundError):
                found.append((folder / name, (folder / name).lstat()))
    return found


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
    """Remove a file, or a folder as far as possible; OSError names the first entry that could not be removed."""
    if not stat.S_ISDIR(path.lstat().st_mode):
        path.unlink()
        return
    _open_up(path)
    shutil.rmtree(path, ignore_errors=True)
    with suppress(FileNotFoundError):
        shutil.rmtree(path)


def _open_up(folder: Path) -> None:
    """Restore the owner's access to folders that he has closed, so that they can be emptied."""
    # Folders only: a file may be hard-linked elsewhere, and its mode would change there too.
    with suppress(OSError):
        folder.chmod(0o700)
    for here, folders, _ in os.walk(folder):
        for path in (Path(here, name) for name in folders):
            with suppress(OSError):
                mode = path.lstat().st_mode
                if stat.S_ISDIR(mode) and mode & 0o700 != 0o700:
                    path.chmod(0o700)
