"""The stored state: buckets, objects and their generations, unfinished uploads. Independent of HTTP."""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...clock import Clock
from ...errors import InputError
from .. import data_folder
from .blobs import Blob, Blobs
from .conditions import Conditions
from .errors import StorageApiError
from .listing import ListedObject
from .records import Bucket, Object, UploadSession, timestamp

_VERSION = 1
_WITH_BLOBS = ("objects", "sessions", "parts")
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


_ANY = Conditions()


class StorageState:
    """Everything in one data folder, which belongs to this process alone.

    One thread may use it, which SQLite checks: whatever a request reads and writes between two awaits is atomic for all
    other requests. That is the one lock under which preconditions are compared and objects committed.
    """

    def __init__(self, folder: Path, clock: Clock) -> None:
        self._lock = _lock_folder(folder)
        try:
            self._db = data_folder.open_database(folder / "tables.sqlite", _SCHEMA, _VERSION, any_thread=False)
        except BaseException:
            os.close(self._lock)
            raise
        self._clock = clock
        self._orphaned_blobs: list[str] = []
        # Imports the files that programs have written, if there may be some. Not called in this thread.
        self.catch_up: Callable[[], None] | None = None
        self.blobs = Blobs(folder / "blobs")
        self.blobs.remove_unknown({blob for table in _WITH_BLOBS for blob in self._blobs(table)})

    def close(self) -> None:
        self._db.close()
        os.close(self._lock)

    def _run(self, statement: str, *values: object) -> sqlite3.Cursor:
        return self._db.execute(statement, values)

    def _blobs(self, source: str, *values: object) -> list[str]:
        return [row[0] for row in self._run(f"SELECT blob FROM {source}", *values)]  # noqa: S608

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Store all of the block or nothing; an inner block joins the outer one."""
        if self._db.in_transaction:
            yield
            return
        self._run("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._run("ROLLBACK")
            raise
        else:
            self._run("COMMIT")
            # A kill before the commit would otherwise leave an object without its bytes.
            for blob in self._orphaned_blobs:
                self.blobs.remove(blob)
        finally:
            self._orphaned_blobs = []

    def now(self) -> str:
        return timestamp(self._clock.now())

    def clear(self) -> None:
        """Remove everything but the highest generation that was assigned."""
        with self.transaction():
            for table in _WITH_BLOBS:
                self._orphaned_blobs += self._blobs(table)
                self._run(f"DELETE FROM {table}")  # noqa: S608
            self._run("DELETE FROM buckets")

    # Buckets

    def bucket(self, name: str) -> Bucket:
        row = self._run("SELECT record FROM buckets WHERE name = ?", name).fetchone()
        if row is None:
            raise StorageApiError(404, f"The specified bucket does not exist. Received: {name!r}.")
        return Bucket.from_json(row[0])

    def has_bucket(self, name: str) -> bool:
        return self._run("SELECT 1 FROM buckets WHERE name = ?", name).fetchone() is not None

    def buckets(self) -> list[Bucket]:
        return [Bucket.from_json(row[0]) for row in self._run("SELECT record FROM buckets ORDER BY name")]

    def create_bucket(self, name: str, fields: dict[str, Any]) -> Bucket:
        if self.has_bucket(name):
            raise StorageApiError(409, f"The bucket exists already. Received: {name!r}.")
        now = self.now()
        return self._store_bucket(Bucket(name=name, created=now, updated=now, fields=fields))

    def change_bucket(self, old: Bucket, fields: dict[str, Any]) -> Bucket:
        return self._store_bucket(old.changed(fields, self.now()))

    def _store_bucket(self, bucket: Bucket) -> Bucket:
        with self.transaction():
            self._run("REPLACE INTO buckets VALUES (?, ?)", bucket.name, bucket.to_json())
        return bucket

    def delete_bucket(self, name: str) -> None:
        if self._run("SELECT 1 FROM objects WHERE bucket = ? LIMIT 1", name).fetchone():
            raise StorageApiError(409, "The bucket you tried to delete is not empty.")
        with self.transaction():
            self._run("DELETE FROM buckets WHERE name = ?", name)

    # Objects

    def find(self, bucket: str, name: str, generation: int | None = None) -> Object | None:
        """Return the live object, or one generation of it; None if it does not exist."""
        query = "SELECT record FROM objects WHERE bucket = ? AND name = ? AND "
        query += "live" if generation is None else "generation = ?"
        row = self._run(query, bucket, name, *([] if generation is None else [generation])).fetchone()
        return None if row is None else Object.from_json(row[0])

    def get(
        self,
        bucket: str,
        name: str,
        generation: int | None = None,
        conditions: Conditions = _ANY,
        *,
        reading: bool = True,
    ) -> Object:
        self.bucket(bucket)
        record = self.find(bucket, name, generation)
        if record is None:
            raise StorageApiError(404, f"No such object: {bucket}/{name}")
        conditions.check(record, reading=reading)
        return record

    def scan(self, bucket: str, name: str, generation: int, limit: int, *, versions: bool) -> list[ListedObject]:
        live = "" if versions else "AND live"
        query = (
            "SELECT name, generation, record FROM objects "  # noqa: S608
            f"WHERE bucket = ? AND (name, generation) > (?, ?) {live} ORDER BY name, generation LIMIT ?"
        )
        return [ListedObject(*row) for row in self._run(query, bucket, name, generation, limit)]

    def live_objects(self) -> list[tuple[str, str, int, str]]:
        return self._run("SELECT bucket, name, generation, blob FROM objects WHERE live").fetchall()

    @property
    def change_count(self) -> int:
        """A number that grows with every write."""
        return self._db.total_changes

    def commit(
        self,
        bucket: str,
        name: str,
        blob: Blob,
        fields: dict[str, Any],
        conditions: Conditions = _ANY,
        components: int | None = None,
    ) -> Object:
        """Make a finished blob the live generation of an object."""
        with self.transaction():
            owner = self.bucket(bucket)
            current = self.find(bucket, name)
            conditions.check(current)
            now = self.now()
            if current is not None:
                self._retire(current, now, keep=owner.versioned)
            new_object = Object(
                bucket=bucket,
                name=name,
                generation=self._next_generation(),
                blob=blob.id,
                size=blob.size,
                crc32c=blob.crc32c,
                md5=blob.md5,
                created=now,
                updated=now,
                # After a change of a bucket's class, the existing objects keep theirs.
                fields={"storageClass": owner.storage_class, **fields},
                components=components,
            )
            return self._write(new_object)

    def change(self, old: Object, fields: dict[str, Any]) -> Object:
        with self.transaction():
            return self._write(old.changed(fields, self.now()))

    def delete(self, record: Object, *, permanently: bool) -> None:
        """Remove a generation; unless `permanently`, a bucket with versioning keeps it as a noncurrent one."""
        with self.transaction():
            self._retire(record, self.now(), keep=not permanently and self.bucket(record.bucket).versioned)

    def _retire(self, old: Object, now: str, *, keep: bool) -> None:
        if keep:
            self._write(replace(old, deleted=now))
            return
        query = "DELETE FROM objects WHERE bucket = ? AND name = ? AND generation = ?"
        self._run(query, old.bucket, old.name, old.generation)
        self._orphaned_blobs.append(old.blob)

    def _write(self, record: Object) -> Object:
        key = (record.bucket, record.name, record.generation)
        live = int(record.deleted is None)
        self._run("REPLACE INTO objects VALUES (?, ?, ?, ?, ?, ?)", *key, live, record.blob, record.to_json())
        return record

    def _next_generation(self) -> int:
        """Return a number above all that were assigned, also by earlier servers: microseconds, as the real ones."""
        last: int = self._run("SELECT generation FROM counters").fetchone()[0]
        following = max(last + 1, int(self._clock.now() * 1e6))
        self._run("UPDATE counters SET generation = ?", following)
        return following

    # Unfinished uploads

    def session(self, key: str) -> UploadSession | None:
        row = self._run("SELECT record FROM sessions WHERE id = ?", key).fetchone()
        return None if row is None else UploadSession.from_json(row[0])

    def store_session(self, session: UploadSession) -> None:
        blob = "" if session.finished else session.blob
        with self.transaction():
            self._run("REPLACE INTO sessions VALUES (?, ?, ?)", session.id, blob, session.to_json())

    def delete_session(self, session: UploadSession) -> None:
        with self.transaction():
            self._orphaned_blobs += [session.blob] if session.blob and not session.finished else []
            self._orphaned_blobs += self._blobs("parts WHERE session = ?", session.id)
            self._run("DELETE FROM parts WHERE session = ?", session.id)
            self._run("DELETE FROM sessions WHERE id = ?", session.id)

    def store_part(self, session: UploadSession, number: int, blob: Blob) -> None:
        """Store one part of a multipart upload of the XML API; the same number again replaces it."""
        with self.transaction():
            self._orphaned_blobs += self._blobs("parts WHERE session = ? AND number = ?", session.id, number)
            values = (session.id, number, blob.id, blob.md5, blob.size)
            self._run("REPLACE INTO parts VALUES (?, ?, ?, ?, ?)", *values)

    def parts(self, session: UploadSession) -> dict[int, tuple[str, str, int]]:
        rows = self._run("SELECT number, blob, etag, size FROM parts WHERE session = ?", session.id)
        return {number: (blob, etag, size) for number, blob, etag, size in rows}


def _lock_folder(folder: Path) -> int:
    """Make the folder if it does not exist, and return the handle that keeps other emulators out of it."""
    try:
        data_folder.make_data_folder(folder)
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.fchmod(lock, 0o600)
    except OSError as error:
        raise InputError(f"The data folder cannot be used: {error}. Next: name another one by --data.") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise InputError(
            f"Another emulator serves the data folder {str(folder)!r}. Next: stop it, or name another folder by --data."
        ) from None
    return lock
