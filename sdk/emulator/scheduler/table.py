"""The stored jobs of Cloud Scheduler, and how the clock was moved ahead."""

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
CREATE TABLE moves (time REAL NOT NULL, ahead_s REAL NOT NULL);
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
    """Callers serialize their calls by their own lock."""

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

    def moves(self) -> list[tuple[float, float]]:
        return self._db.execute("SELECT time, ahead_s FROM moves ORDER BY rowid").fetchall()

    def store_move(self, time: float, ahead_s: float) -> None:
        self._db.execute("INSERT INTO moves VALUES (?, ?)", (time, ahead_s))

    def clear(self) -> None:
        self._db.executescript("BEGIN; DELETE FROM jobs; DELETE FROM moves; COMMIT;")
