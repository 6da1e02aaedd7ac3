"""The jobs of a data folder, in SQLite."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import data_folder
from .states import JobStatus

_VERSION = 2
_SCHEMA = """
CREATE TABLE jobs (
    id INTEGER PRIMARY KEY, project TEXT NOT NULL, region TEXT NOT NULL, job TEXT NOT NULL, status TEXT NOT NULL
);
CREATE INDEX of_place ON jobs (project, region, id);
CREATE TABLE operations (id INTEGER PRIMARY KEY, place TEXT NOT NULL);
"""


@dataclass(frozen=True, kw_only=True)
class JobRow:
    """A job: its location, its specification and its status."""

    id: int
    project: str
    region: str
    job: dict[str, Any]
    status: JobStatus


class JobTable:
    """The table of jobs. Callers serialize their calls by a lock of their own."""

    def __init__(self, path: Path) -> None:
        self._db = data_folder.open_database(path, _SCHEMA, _VERSION, any_thread=True)

    def close(self) -> None:
        self._db.close()

    def add(self, row: JobRow) -> None:
        values = (row.id, row.project, row.region, json.dumps(row.job), json.dumps(row.status.to_dict()))
        self._db.execute("INSERT INTO jobs VALUES (?, ?, ?, ?, ?)", values)

    def update(self, job: int, status: JobStatus) -> None:
        self._db.execute("UPDATE jobs SET status = ? WHERE id = ?", (json.dumps(status.to_dict()), job))

    def get(self, job: int) -> JobRow | None:
        found = self._db.execute("SELECT * FROM jobs WHERE id = ?", (job,)).fetchone()
        return None if found is None else _row(found)

    def last(self) -> int:
        """Return the highest id of a job, 0 for none."""
        return int(self._db.execute("SELECT coalesce(max(id), 0) FROM jobs").fetchone()[0])

    def newest(self, project: str, region: str, before: int | None) -> Iterator[JobRow]:
        """Yield the jobs of a location with ids below `before`, the newest first."""
        query = "SELECT * FROM jobs WHERE project = ? AND region = ? AND id < ? ORDER BY id DESC"
        for found in self._db.execute(query, (project, region, 2**63 - 1 if before is None else before)):
            yield _row(found)

    def all_jobs(self) -> list[JobRow]:
        """Return all jobs, the oldest first."""
        return [_row(found) for found in self._db.execute("SELECT * FROM jobs ORDER BY id")]

    def delete(self, job: int, operation: int, place: str) -> None:
        """Delete a job, and record the operation that did it."""
        self._db.execute("BEGIN IMMEDIATE")
        self._db.execute("DELETE FROM jobs WHERE id = ?", (job,))
        self._db.execute("INSERT INTO operations VALUES (?, ?)", (operation, place))
        self._db.execute("COMMIT")

    def operation(self, operation: int, place: str) -> bool:
        """Return whether there was such an operation."""
        query = "SELECT 1 FROM operations WHERE id = ? AND place = ?"
        return self._db.execute(query, (operation, place)).fetchone() is not None

    def clear(self) -> None:
        self._db.executescript("BEGIN; DELETE FROM jobs; DELETE FROM operations; COMMIT;")


def _row(found: tuple[Any, ...]) -> JobRow:
    number, project, region, job, status = found
    return JobRow(
        id=number, project=project, region=region, job=json.loads(job), status=JobStatus.from_dict(json.loads(status))
    )
