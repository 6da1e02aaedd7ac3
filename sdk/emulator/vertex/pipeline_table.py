"""What training pipelines and pipeline jobs have in common: each runs one custom job.

A pipeline has no state of its own. It shows the state of its custom job, also after that job was deleted.
"""

from __future__ import annotations

import json
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import data_folder
from . import lifecycle, listing
from .environment import project_number
from .errors import VertexApiError, not_found
from .jobs import CustomJobs

# Creates a custom job from its project, region, body, and the field that its specification is in; returns its resource.
CreateJob = Callable[[str, str, dict[str, Any], str], dict[str, Any]]
# Deletes a custom job by its project, region and id; returns the operation.
DeleteJob = Callable[[str, str, str], dict[str, Any]]
_VERSION = 1
_STATES = {"JOB_STATE_EXPIRED": "PIPELINE_STATE_FAILED"}


@dataclass(frozen=True, kw_only=True)
class PipelineRow:
    id: int
    project: str
    region: str
    job: int
    pipeline: dict[str, Any]
    deleted: dict[str, Any] | None  # The resource of the custom job, once that was deleted


class PipelineTable(ABC):
    """The pipelines of one kind in a data folder, with the calls of the API. Safe to use from any thread."""

    KIND: str  # as errors name it
    COLLECTION: str  # as the path of a request and a list name it
    TABLE: str
    SCHEMA: str

    def __init__(self, path: Path, jobs: CustomJobs, create_job: CreateJob, delete_job: DeleteJob) -> None:
        self._jobs, self._create_job, self._delete_job = jobs, create_job, delete_job
        self._lock = threading.RLock()
        self._db = data_folder.open_database(path, self.SCHEMA, _VERSION, any_thread=True)

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def clear(self) -> None:
        with self._lock:
            self._db.execute(f"DELETE FROM {self.TABLE}")  # noqa: S608

    def get(self, project: str, region: str, pipeline: str) -> dict[str, Any]:
        return self._resource(self._row(project, region, pipeline))

    def list(self, project: str, region: str, query: Mapping[str, str]) -> dict[str, Any]:
        def newest(before: int | None) -> Iterator[tuple[int, dict[str, Any]]]:
            where = "project = ? AND region = ? AND id < ? ORDER BY id DESC"
            for row in self._rows(where, project_number(project), region, 2**63 - 1 if before is None else before):
                try:
                    resource = self._resource(row)
                except VertexApiError:
                    continue  # its job is gone: a reset was killed when it had removed only the jobs
                yield row.id, self._listed(resource)

        shown, token = listing.read_page(newest, query, self.KIND)
        answer: dict[str, Any] = {self.COLLECTION: shown} if shown else {}
        return {**answer, "nextPageToken": token} if token else answer

    def cancel(self, project: str, region: str, pipeline: str) -> None:
        row = self._row(project, region, pipeline)
        if row.deleted is None:
            self._jobs.cancel(project, region, str(row.job))

    def delete(self, project: str, region: str, pipeline: str) -> dict[str, Any]:
        """Delete a pipeline that has ended, and return the operation. Its custom job stays."""
        with self._lock:
            row = self._row(project, region, pipeline)
            state = self._job(row)["state"]
            if state not in lifecycle.TERMINAL:
                text = f"The {self.KIND} is in state {pipeline_state(state)}; only one that has ended can be deleted."
                raise VertexApiError(400, f"{text} Cancel it first.", status="FAILED_PRECONDITION")
            operation = self._jobs.new_operation(project, region)
            self._db.execute(f"DELETE FROM {self.TABLE} WHERE id = ?", (row.id,))  # noqa: S608
            return operation

    def delete_job(self, project: str, region: str, job: str) -> dict[str, Any]:
        """Delete a custom job, whose pipeline, if it has one, continues to show its end; return the operation."""
        with self._lock:
            last = self._jobs.get(project, region, job)
            if last["state"] in lifecycle.TERMINAL:
                # First: a kill between the two must not leave a pipeline without the end of its job.
                end = f"UPDATE {self.TABLE} SET deleted = ? WHERE job = ?"  # noqa: S608
                self._db.execute(end, (json.dumps(last), int(job)))
            return self._delete_job(project, region, job)

    def display_name(self, pipeline: str) -> str:
        """Return the display name of a pipeline, "" for an unknown one: faults are matched against it."""
        row = next(iter(self._named(pipeline)), None)
        return "" if row is None else str(row.pipeline.get("displayName", ""))

    @abstractmethod
    def _named(self, pipeline: str) -> Sequence[PipelineRow]:
        """Return the rows of all places whose pipeline has this id in requests."""

    @abstractmethod
    def _resource(self, row: PipelineRow) -> dict[str, Any]:
        """Return a pipeline as the API shows it."""

    def _listed(self, resource: dict[str, Any]) -> dict[str, Any]:
        return resource

    def _rows(self, where: str, *values: Any) -> Sequence[PipelineRow]:
        query = f"SELECT id, project, region, job, pipeline, deleted FROM {self.TABLE} WHERE {where}"  # noqa: S608
        with self._lock:
            found = self._db.execute(query, values).fetchall()
        return [
            PipelineRow(
                id=number,
                project=project,
                region=region,
                job=job,
                pipeline=json.loads(pipeline),
                deleted=None if deleted is None else json.loads(deleted),
            )
            for number, project, region, job, pipeline, deleted in found
        ]

    def _find(self, project: str, region: str, pipeline: str) -> PipelineRow | None:
        place = (project_number(project), region)
        return next((row for row in self._named(pipeline) if (row.project, row.region) == place), None)

    def _row(self, project: str, region: str, pipeline: str) -> PipelineRow:
        row = self._find(project, region, pipeline)
        if row is None:
            name = f"projects/{project}/locations/{region}/{self.COLLECTION}/{pipeline[:100]}"
            raise not_found(f'{self.KIND} "{name}"')
        return row

    def _job(self, row: PipelineRow) -> dict[str, Any]:
        return row.deleted or self._jobs.get(row.project, row.region, str(row.job))


def pipeline_state(state: str) -> str:
    """Return the state of a pipeline whose custom job has this one."""
    return _STATES.get(state, state.replace("JOB_", "PIPELINE_", 1))
