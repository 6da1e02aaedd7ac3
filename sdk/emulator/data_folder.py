"""The data folder of an emulator and its SQLite databases, which only the user who started it may read.

Jobs and buckets hold secrets of their owners.
"""

from __future__ import annotations

import os
import sqlite3
import stat
from pathlib import Path

from ..errors import InputError

# A file that every emulator writes. A folder with other files in it may be the user's own, or /tmp.
_MARK = "tables.sqlite"
_OTHER_USERS = stat.S_IRWXG | stat.S_IRWXO


def make_data_folder(path: Path) -> None:
    """Make a folder that only this user may enter; close an existing one to others, unless it holds foreign files."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    about = path.stat()
    if about.st_uid != os.geteuid() or not about.st_mode & _OTHER_USERS or about.st_mode & stat.S_ISVTX:
        return
    names = [entry.name for entry in path.iterdir()]
    if not names or _MARK in names:
        path.chmod(0o700)


def make_subfolder(path: Path) -> None:
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.chmod(0o700)


def create_database(path: Path) -> Path:
    """Make the file of a database before SQLite would, so that only this user may read it and the files beside it."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    for file in path.parent.glob(f"{path.name}*"):
        file.chmod(0o600)
    return path


def open_database(path: Path, schema: str, version: int, *, any_thread: bool) -> sqlite3.Connection:
    """Return the open database, with its tables. A commit survives any kill of this process."""
    db = sqlite3.connect(create_database(path), isolation_level=None, check_same_thread=not any_thread)
    try:
        db.execute("PRAGMA journal_mode = WAL")
        # A killed process loses nothing; only a machine that loses power would, and this is an emulator.
        db.execute("PRAGMA synchronous = OFF")
        stored = db.execute("PRAGMA user_version").fetchone()[0]
        if stored == 0:
            db.executescript(f"BEGIN; {schema} PRAGMA user_version = {version}; COMMIT;")
        elif stored != version:
            raise InputError(
                f"The data folder {str(path.parent)!r} was written by another podlift. Received: version {stored}. "
                f"Known: {version}. Next: name another folder by --data."
            )
    except sqlite3.DatabaseError as error:
        db.close()
        raise InputError(f"The data folder {str(path.parent)!r} is damaged: {error}.") from None
    except BaseException:
        db.close()
        raise
    return db
