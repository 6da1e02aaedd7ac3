"""The SQLite tables of a data folder."""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ...errors import InputError
from .. import data_folder

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

    One thread may use it, which SQLite checks: whatever a request reads and writes between two awaits is atomic for all
    other requests. That is the one lock under which preconditions are compared and objects committed.
    """

    def __init__(self, folder: Path) -> None:
        try:
            data_folder.make_data_folder(folder)
            self._lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            os.fchmod(self._lock, 0o600)
        except OSError as error:
            raise InputError(f"The data folder cannot be used: {error}. Next: name another one by --data.") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._db = data_folder.open_database(folder / "tables.sqlite", _SCHEMA, _VERSION, any_thread=False)
        except BlockingIOError:
            os.close(self._lock)
            raise InputError(
                f"Another emulator serves the data folder {str(folder)!r}. Next: stop it, or name another folder by --data."
            ) from None
        except BaseException:
            os.close(self._lock)
            raise

    def close(self) -> None:
        self._db.close()
        os.close(self._lock)

    def run(self, statement: str, *values: object) -> sqlite3.Cursor:
        return self._db.execute(statement, values)

    @property
    def change_count(self) -> int:
        """The number of rows written since the folder was opened."""
        return self._db.total_changes

    @property
    def in_transaction(self) -> bool:
        return self._db.in_transaction

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Write everything in the block or nothing; an inner block joins the outer one."""
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
