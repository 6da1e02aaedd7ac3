"""The tables of a data folder, in SQLite: what a commit has written is there after any kill of this process."""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ...errors import InputError
from .. import private

_VERSION = 1
_SCHEMA = """
CREATE TABLE buckets (name TEXT PRIMARY KEY, record TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE objects (
    bucket TEXT NOT NULL, name TEXT NOT NULL, generation INTEGER NOT NULL, live INTEGER NOT NULL, blob TEXT NOT NULL,
    record TEXT NOT NULL, PRIMARY KEY (bucket, name, generation)
) WITHOUT ROWID;
CREATE UNIQUE INDEX live_objects ON objects (bucket, name) WHERE live;
CREATE TABLE sessions (id TEXT PRIMARY KEY, blob TEXT NOT NULL, record TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE parts (
    session TEXT NOT NULL, number INTEGER NOT NULL, blob TEXT NOT NULL, etag TEXT NOT NULL, size INTEGER NOT NULL,
    PRIMARY KEY (session, number)
) WITHOUT ROWID;
CREATE TABLE counters (generation INTEGER NOT NULL);
INSERT INTO counters VALUES (0);
"""


class Tables:
    """The open database of a folder that belongs to this process alone.

    One thread may use it, which SQLite checks: all that a request reads and writes between two awaits is one step to
    every other request. That is the one lock under which preconditions are compared and objects committed.

    Args:
        folder: made if it is not there.

    Raises:
        InputError: another server has it, or it holds something else.
    """

    def __init__(self, folder: Path) -> None:
        try:
            private.make_data_folder(folder)
            self._lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            os.fchmod(self._lock, 0o600)
        except OSError as error:
            raise InputError(f"The data folder cannot be used: {error}. Next: name another one by --data.") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._db = _open(folder / "tables.sqlite")
        except BlockingIOError:
            os.close(self._lock)
            raise InputError(
                f"Another emulator serves the data folder {str(folder)!r}. Next: stop it, or name another folder by --data."
            ) from None
        except BaseException:
            os.close(self._lock)
            raise

    def close(self) -> None:
        """Close the database and let go of the folder."""
        self._db.close()
        os.close(self._lock)

    def run(self, statement: str, *values: object) -> sqlite3.Cursor:
        """Execute one statement."""
        return self._db.execute(statement, values)

    @property
    def change_count(self) -> int:
        """How many rows were written since the folder was opened."""
        return self._db.total_changes

    @property
    def in_transaction(self) -> bool:
        """True within `transaction`."""
        return self._db.in_transaction

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Make what is written in the block happen as a whole or not at all; an inner block joins the outer one."""
        if self._db.in_transaction:
            yield
            return
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")


def _open(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(private.create_database(path), isolation_level=None)
    try:
        db.execute("PRAGMA journal_mode = WAL")
        # A killed process loses nothing that was written; only a machine that loses power would, and this is an emulator.
        db.execute("PRAGMA synchronous = OFF")
        version = db.execute("PRAGMA user_version").fetchone()[0]
        if version == 0:
            db.executescript(f"BEGIN; {_SCHEMA} PRAGMA user_version = {_VERSION}; COMMIT;")
        elif version != _VERSION:
            raise InputError(
                f"The data folder {str(path.parent)!r} was written by another podlift. Received: version {version}. "
                f"Known: {_VERSION}. Next: name another folder by --data."
            )
    except sqlite3.DatabaseError as error:
        db.close()
        raise InputError(f"The data folder {str(path.parent)!r} is damaged: {error}.") from None
    except BaseException:
        db.close()
        raise
    return db
