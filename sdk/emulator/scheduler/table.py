"""The stored jobs of Cloud Scheduler, and how far the clock was moved ahead."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from .. import data_folder
from .executions import Execution

_VERSION = 1
_SCHEMA = """
CREATE TABLE jobs (
    project TEXT NOT NULL, region TEXT NOT NULL, id TEXT NOT NULL, job TEXT NOT NULL, execution TEXT NOT NULL,
    PRIMARY KEY (project, region, id)
);
CREATE TABLE clock (ahead_s REAL NOT NULL);
"""


class JobKey(NamedTuple):
    """The number of the project, the region and the id of a job."""

    project: str
    region: str
    id: str


@dataclass(frozen=True, kw_only=True)
class ScheduledJob:
    key: JobKey
    job: dict[str, Any]  # As the API shows it, without `scheduleTime`
    execution: Execution | None = None  # None while the job is not enabled


class SchedulerTable:
    """Callers serialize their calls by a lock of their own."""

    def __init__(self, path: Path) -> None:
        self._db = data_folder.open_database(path, _SCHEMA, _VERSION, any_thread=True)

    def close(self) -> None:
        self._db.close()

    def store(self, row: ScheduledJob) -> None:
        execution = None if row.execution is None else row.execution.to_dict()
        values = (*row.key, json.dumps(row.job), json.dumps(execution))
        self._db.execute("INSERT OR REPLACE INTO jobs VALUES (?, ?, ?, ?, ?)", values)

    def delete(self, key: JobKey) -> None:
        self._db.execute("DELETE FROM jobs WHERE project = ? AND region = ? AND id = ?", key)

    def all_jobs(self) -> list[ScheduledJob]:
        return [
            ScheduledJob(
                key=JobKey(project, region, name),
                job=json.loads(job),
                execution=Execution.from_dict(json.loads(execution)) if execution != "null" else None,
            )
            for project, region, name, job, execution in self._db.execute("SELECT * FROM jobs")
        ]

    def ahead_s(self) -> float:
        found = self._db.execute("SELECT ahead_s FROM clock").fetchone()
        return 0.0 if found is None else float(found[0])

    def store_ahead(self, seconds: float) -> None:
        self._db.execute("INSERT OR REPLACE INTO clock (rowid, ahead_s) VALUES (1, ?)", (seconds,))

    def clear(self) -> None:
        self._db.executescript("BEGIN; DELETE FROM jobs; DELETE FROM clock; COMMIT;")
