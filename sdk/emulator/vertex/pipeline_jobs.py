"""Pipeline jobs with one task, which runs a container: as on Vertex AI, that is a custom job.

A pipeline job has no state of its own. It shows the state of its custom job, also after that job was deleted.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from .. import data_folder
from . import bodies, lifecycle, listing, pipeline_specs
from .environment import project_number
from .errors import VertexApiError, invalid, not_found
from .jobs import CustomJobs
from .pipelines import CreateJob, pipeline_state
from .timing import EmulatorClock, format_time

_FIELD = "pipeline_job"
_ID = re.compile(r"[a-z][a-z0-9-]{0,127}")
_DIRECTORY = re.compile(r"gs://[a-z0-9][a-z0-9._-]+(/.*)?")
# What Vertex AI Pipelines takes for a container that names no resources.
_MACHINE = "e2-standard-4"
_BILLING = "vertex-ai-pipelines-run-billing-id"
_SHARED = ("startTime", "endTime", "updateTime")
_FAILED_PRECONDITION = 9
_VERSION = 1
_SCHEMA = """
CREATE TABLE pipeline_jobs (
    number INTEGER PRIMARY KEY, project TEXT NOT NULL, region TEXT NOT NULL, id TEXT NOT NULL, job INTEGER NOT NULL,
    resource TEXT NOT NULL, task TEXT NOT NULL, ended TEXT, UNIQUE (project, region, id)
);
CREATE INDEX of_custom_job ON pipeline_jobs (job);
"""
# Deletes a custom job by its project, region and id; returns the operation.
DeleteJob = Callable[[str, str, str], dict[str, Any]]
# The headers of a request that the emulator's own schedules send, for the fields of `Scheduled`.
SCHEDULED = ("x-podlift-schedule", "x-podlift-schedule-time")


class Scheduled(NamedTuple):
    """The schedule that creates a pipeline job, and the instant for which it does."""

    name: str = ""
    time: str = ""


_UNSCHEDULED = Scheduled()


@dataclass(frozen=True, kw_only=True)
class _PipelineJobRow:
    number: int
    project: str
    region: str
    id: str
    job: int
    resource: dict[str, Any]
    task: str
    ended: dict[str, Any] | None  # The resource of the custom job, once that was deleted


class PipelineJobs:
    """The pipeline jobs of one data folder, with the calls of the API. Safe to use from any thread."""

    def __init__(
        self, path: Path, jobs: CustomJobs, create_job: CreateJob, delete_job: DeleteJob, clock: EmulatorClock
    ) -> None:
        self._jobs, self._create_job, self._delete_job, self._clock = jobs, create_job, delete_job, clock
        self._lock = threading.RLock()
        self._db = data_folder.open_database(path, _SCHEMA, _VERSION, any_thread=True)

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def clear(self) -> None:
        with self._lock:
            self._db.execute("DELETE FROM pipeline_jobs")

    def create(
        self, project: str, region: str, given: dict[str, Any], wanted: str = "", scheduled: Scheduled = _UNSCHEDULED
    ) -> dict[str, Any]:
        """Create a pipeline job; `wanted` is its id, "" for one of the service's choice."""
        task = checked(given)
        with self._lock:
            number, created = self._jobs.new_id(), format_time(self._clock.now())
            pipeline_id = wanted or f"{task.pipeline}-{number}"
            if not _ID.fullmatch(pipeline_id):
                raise invalid([("pipeline_job_id", f"Invalid pipeline job id: {pipeline_id[:100]!r}. [a-z][a-z0-9-]*")])
            place = f"projects/{project_number(project)}/locations/{region}"
            name = f"{place}/pipelineJobs/{pipeline_id}"
            if self._find(project, region, pipeline_id) is not None:
                raise VertexApiError(409, f"The PipelineJob {name} already exists.")
            variables = {
                "pipeline_job_name": pipeline_id,
                "pipeline_job_resource_name": name,
                "pipeline_job_uuid": str(number),
                "pipeline_task_name": task.name,
                "pipeline_task_uuid": str(number + 1),
                "pipeline_job_create_time_utc": created,
                # Without a schedule, as kfp does: the time of its creation.
                "pipeline_job_schedule_time_utc": scheduled.time or created,
                "pipeline_root": given["runtimeConfig"]["gcsOutputDirectory"],
            }
            job = self._create_job(project, region, _custom_job(given, task, variables), f"{_FIELD}.pipeline_spec")
            job_id = int(job["name"].rpartition("/")[2])
            resource = {"name": name, **given, "createTime": created}
            resource |= {"scheduleName": scheduled.name} if scheduled.name else {}
            values = (number, project_number(project), region, pipeline_id, job_id, json.dumps(resource), task.name)
            self._db.execute("INSERT INTO pipeline_jobs VALUES (?, ?, ?, ?, ?, ?, ?, NULL)", values)
        return self.get(project, region, pipeline_id)

    def get(self, project: str, region: str, pipeline: str) -> dict[str, Any]:
        return self._resource(self._row(project, region, pipeline))

    def list(self, project: str, region: str, query: Mapping[str, str]) -> dict[str, Any]:
        def newest(before: int | None) -> Iterator[tuple[int, dict[str, Any]]]:
            where = "project = ? AND region = ? AND number < ? ORDER BY number DESC"
            values = (project_number(project), region, 2**63 - 1 if before is None else before)
            for row in self._rows(where, values):
                resource = self._resource(row)
                # As the API documents it.
                yield row.number, {name: value for name, value in resource.items() if name != "jobDetail"}

        shown, token = listing.read_page(newest, query, "PipelineJob")
        answer: dict[str, Any] = {"pipelineJobs": shown} if shown else {}
        return {**answer, "nextPageToken": token} if token else answer

    def cancel(self, project: str, region: str, pipeline: str) -> None:
        row = self._row(project, region, pipeline)
        if row.ended is None:
            self._jobs.cancel(project, region, str(row.job))

    def delete(self, project: str, region: str, pipeline: str) -> dict[str, Any]:
        """Delete a pipeline job that has ended, and return the operation. Its custom job stays."""
        with self._lock:
            row = self._row(project, region, pipeline)
            state = self._job(row)["state"]
            if state not in lifecycle.TERMINAL:
                text = f"The PipelineJob is in state {pipeline_state(state)}; only one that has ended can be deleted."
                raise VertexApiError(400, f"{text} Cancel it first.", status="FAILED_PRECONDITION")
            operation = self._jobs.new_operation(project, region)
            self._db.execute("DELETE FROM pipeline_jobs WHERE number = ?", (row.number,))
            return operation

    def delete_job(self, project: str, region: str, job: str) -> dict[str, Any]:
        """Delete a custom job, whose pipeline job, if it has one, continues to show its end; return the operation."""
        with self._lock:
            last = self._jobs.get(project, region, job)
            if last["state"] in lifecycle.TERMINAL:
                self._db.execute("UPDATE pipeline_jobs SET ended = ? WHERE job = ?", (json.dumps(last), int(job)))
            return self._delete_job(project, region, job)

    def display_name(self, pipeline: str) -> str:
        """Return the display name of a pipeline job, "" for an unknown one: faults are matched against it."""
        rows = self._rows("id = ?", (pipeline,))
        return str(rows[0].resource.get("displayName", "")) if rows else ""

    def _rows(self, where: str, values: tuple[Any, ...]) -> Sequence[_PipelineJobRow]:
        with self._lock:
            found = self._db.execute(f"SELECT * FROM pipeline_jobs WHERE {where}", values).fetchall()  # noqa: S608
        return [
            _PipelineJobRow(
                number=number,
                project=project,
                region=region,
                id=pipeline,
                job=job,
                resource=json.loads(resource),
                task=task,
                ended=None if ended is None else json.loads(ended),
            )
            for number, project, region, pipeline, job, resource, task, ended in found
        ]

    def _find(self, project: str, region: str, pipeline: str) -> _PipelineJobRow | None:
        rows = self._rows("project = ? AND region = ? AND id = ?", (project_number(project), region, pipeline))
        return rows[0] if rows else None

    def _row(self, project: str, region: str, pipeline: str) -> _PipelineJobRow:
        row = self._find(project, region, pipeline)
        if row is None:
            raise not_found(f'PipelineJob "projects/{project}/locations/{region}/pipelineJobs/{pipeline[:100]}"')
        return row

    def _job(self, row: _PipelineJobRow) -> dict[str, Any]:
        return row.ended or self._jobs.get(row.project, row.region, str(row.job))

    def _resource(self, row: _PipelineJobRow) -> dict[str, Any]:
        job = self._job(row)
        state, times = pipeline_state(job["state"]), {name: job[name] for name in _SHARED if name in job}
        task: dict[str, Any] = {
            "taskId": str(row.number + 1),
            "taskName": row.task,
            "state": state.removeprefix("PIPELINE_STATE_").replace("QUEUED", "PENDING"),
            "createTime": row.resource["createTime"],
            "executorDetail": {"containerDetail": {"mainJob": job["name"]}},
            **{name: times[name] for name in ("startTime", "endTime") if name in times},
            **({"error": job["error"]} if "error" in job else {}),
        }
        text = f"The DAG failed because some tasks have failed. The failed tasks are: [{row.task}]."
        failed = {"error": {"code": _FAILED_PRECONDITION, "message": text}} if state.endswith("_FAILED") else {}
        return {**row.resource, "state": state, **times, "jobDetail": {"taskDetails": [task]}, **failed}


def checked(given: Mapping[str, Any]) -> pipeline_specs.ContainerTask:
    """Return the task of a pipeline job, or raise the error that names the mistakes."""
    config = given.get("runtimeConfig", {})
    directory, name = config.get("gcsOutputDirectory", ""), given.get("displayName", "")
    found = []
    if not _DIRECTORY.fullmatch(directory):
        where = f"{_FIELD}.runtime_config.gcs_output_directory"
        found.append((where, f"Required: a path in a Cloud Storage bucket. Received: {directory[:100]!r}."))
    if len(name) > bodies.MAX_NAME:
        found.append((f"{_FIELD}.display_name", f"The display name has more than {bodies.MAX_NAME} characters."))
    found += bodies.label_problems(given.get("labels", {}), f"{_FIELD}.labels")
    unknown = [each for each in ("parameters", "inputArtifacts") if config.get(each)]
    unknown += [
        each for each in ("templateUri", "network", "pscInterfaceConfig", "reservedIpRanges") if given.get(each)
    ]
    found += [(f"{_FIELD}.{each}", f"podlift's emulator does not serve {each} of a PipelineJob.") for each in unknown]
    if found:
        raise invalid(found)
    return pipeline_specs.read(given.get("pipelineSpec"), config.get("parameterValues") or {})


def _custom_job(
    given: Mapping[str, Any], task: pipeline_specs.ContainerTask, variables: Mapping[str, str]
) -> dict[str, Any]:
    pool = {"machineSpec": {"machineType": _MACHINE}, "replicaCount": 1, "containerSpec": task.resolved(variables)}
    spec: dict[str, Any] = {"workerPoolSpecs": [pool]}
    if given.get("serviceAccount"):
        spec["serviceAccount"] = given["serviceAccount"]
    # The labels of a pipeline job are not those of what its own containers create.
    return {
        "displayName": f"{variables['pipeline_job_name']}-{task.name}"[: bodies.MAX_NAME],
        "labels": {_BILLING: variables["pipeline_job_uuid"]},
        "jobSpec": spec,
    }
