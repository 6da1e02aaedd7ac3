"""Pipeline jobs with one task, which runs a container: as on Vertex AI, that is a custom job."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from . import bodies, pipeline_specs
from .environment import project_number
from .errors import VertexApiError, invalid, not_emulated
from .jobs import CustomJobs
from .pipeline_table import CreateJob, DeleteJob, PipelineRow, PipelineTable, pipeline_state
from .timing import EmulatorClock, format_time

_FIELD = "pipeline_job"
_ID = re.compile(r"[a-z][a-z0-9-]{0,127}")
_DIRECTORY = re.compile(r"gs://[a-z0-9][a-z0-9._-]+(/.*)?")
# What Vertex AI Pipelines takes for a container that names no resources.
_MACHINE = "e2-standard-4"
_BILLING = "vertex-ai-pipelines-run-billing-id"
_SHARED = ("startTime", "endTime", "updateTime")
_FAILED_PRECONDITION = 9
# The headers of a request that the emulator's own schedules send, for the fields of `Scheduled`.
SCHEDULED = ("x-podlift-schedule", "x-podlift-schedule-time")


class Scheduled(NamedTuple):
    """The schedule that creates a pipeline job, and the instant for which it does."""

    name: str = ""
    time: str = ""


_UNSCHEDULED = Scheduled()


class PipelineJobs(PipelineTable):
    KIND, COLLECTION, TABLE = "PipelineJob", "pipelineJobs", "pipeline_jobs"
    SCHEMA = """
CREATE TABLE pipeline_jobs (
    id INTEGER PRIMARY KEY, project TEXT NOT NULL, region TEXT NOT NULL, job INTEGER NOT NULL, pipeline TEXT NOT NULL,
    deleted TEXT, name TEXT NOT NULL, UNIQUE (project, region, name)
);
CREATE INDEX of_custom_job ON pipeline_jobs (job);
"""

    def __init__(
        self, path: Path, jobs: CustomJobs, create_job: CreateJob, delete_job: DeleteJob, clock: EmulatorClock
    ) -> None:
        super().__init__(path, jobs, create_job, delete_job)
        self._clock = clock

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
            details = {"taskId": str(number + 1), "taskName": task.name, "createTime": created}
            resource = {"name": name, **given, "createTime": created, "jobDetail": {"taskDetails": [details]}}
            resource |= {"scheduleName": scheduled.name} if scheduled.name else {}
            job_id = int(job["name"].rpartition("/")[2])
            values = (number, project_number(project), region, job_id, json.dumps(resource), pipeline_id)
            self._db.execute("INSERT INTO pipeline_jobs VALUES (?, ?, ?, ?, ?, NULL, ?)", values)
        return self.get(project, region, pipeline_id)

    def _named(self, pipeline: str) -> Sequence[PipelineRow]:
        return self._rows("name = ?", pipeline)

    def _listed(self, resource: dict[str, Any]) -> dict[str, Any]:
        # As the API documents it.
        return {name: value for name, value in resource.items() if name != "jobDetail"}

    def _resource(self, row: PipelineRow) -> dict[str, Any]:
        job, (details,) = self._job(row), row.pipeline["jobDetail"]["taskDetails"]
        state, times = pipeline_state(job["state"]), {name: job[name] for name in _SHARED if name in job}
        task: dict[str, Any] = {
            **details,
            "state": state.removeprefix("PIPELINE_STATE_").replace("QUEUED", "PENDING"),
            "executorDetail": {"containerDetail": {"mainJob": job["name"]}},
            **{name: times[name] for name in ("startTime", "endTime") if name in times},
            **({"error": job["error"]} if "error" in job else {}),
        }
        text = f"The DAG failed because some tasks have failed. The failed tasks are: [{details['taskName']}]."
        failed = {"error": {"code": _FAILED_PRECONDITION, "message": text}} if state.endswith("_FAILED") else {}
        return {**row.pipeline, "state": state, **times, "jobDetail": {"taskDetails": [task]}, **failed}


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
    if found:
        raise invalid(found)
    if unknown:
        raise not_emulated(f"{', '.join(unknown)} of a PipelineJob")
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
