"""Training pipelines, which the training job classes of Google's SDK create: each runs one custom job.

A pipeline stores no state. It shows the state of its custom job, even after that job was deleted.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import data_folder
from ..messages import Problems, read_message
from . import bodies
from .environment import project_number
from .errors import VertexApiError, invalid
from .jobs import Collection, CustomJobs, is_number
from .scheduler import ResourceRow

_DEFINITIONS = "gs://google-cloud-aiplatform/schema/trainingjob/definition/"
CUSTOM_TASK = f"{_DEFINITIONS}custom_task_1.0.0.yaml"
_FIELD = "training_pipeline"
_INPUTS = f"{_FIELD}.training_task_inputs"
_SUFFIX = "-custom-job"
_SHARED = ("createTime", "startTime", "endTime", "updateTime", "error")
_VERSION = 2
_STATES = {"JOB_STATE_EXPIRED": "PIPELINE_STATE_FAILED"}
_SCHEMA = """
CREATE TABLE pipelines (
    id INTEGER PRIMARY KEY, project TEXT NOT NULL, region TEXT NOT NULL, job INTEGER NOT NULL, pipeline TEXT NOT NULL
);
CREATE INDEX of_place ON pipelines (project, region, id);
"""


@dataclass(frozen=True, kw_only=True)
class _PipelineRow(ResourceRow):
    job: int
    pipeline: dict[str, Any]

    @property
    def display_name(self) -> str:
        return str(self.pipeline.get("displayName", ""))


class TrainingPipelines(Collection[_PipelineRow]):
    kind, name = "TrainingPipeline", "trainingPipelines"

    def __init__(self, path: Path, jobs: CustomJobs) -> None:
        super().__init__(jobs.lock)
        self._jobs = jobs
        self._db = data_folder.open_database(path, _SCHEMA, _VERSION, any_thread=True)

    def close(self) -> None:
        with self.lock:
            self._db.close()

    def clear(self) -> None:
        with self.lock:
            self._db.execute("DELETE FROM pipelines")

    def create(self, project: str, region: str, pipeline: dict[str, Any]) -> dict[str, Any]:
        job = custom_job(pipeline, region)
        new_job = self._jobs.create(project, region, job, _INPUTS)
        number, job_id = project_number(project), int(new_job["name"].rpartition("/")[2])
        with self.lock:
            last = self._db.execute("SELECT coalesce(max(id), 0) FROM pipelines").fetchone()[0]
            pipeline_id = max(self._jobs.new_id(), last + 1)
            values = (pipeline_id, number, region, job_id, json.dumps(pipeline))
            self._db.execute("INSERT INTO pipelines VALUES (?, ?, ?, ?, ?)", values)
        return self.get(project, region, str(pipeline_id))

    def cancel(self, project: str, region: str, pipeline: str) -> None:
        job = str(self._row(project, region, pipeline).job)
        if self._jobs.find(job) is not None:
            self._jobs.cancel(project, region, job)

    def delete(self, project: str, region: str, pipeline: str) -> dict[str, Any]:
        """Delete a pipeline that has ended, and return the operation. Its custom job stays."""
        with self.lock:
            row = self._row(project, region, pipeline)
            state = self._jobs.of_pipeline(row.job)["state"]
            self._check_deletable(state, _state(state))
            operation = self._jobs.new_operation(project, region)
            self._db.execute("DELETE FROM pipelines WHERE id = ?", (row.id,))
            return operation

    def find(self, pipeline: str) -> _PipelineRow | None:
        return next(iter(self._rows("id = ?", int(pipeline))), None) if is_number(pipeline) else None

    def _newest(self, project: str, region: str, before: int | None) -> Iterator[tuple[int, dict[str, Any]]]:
        where = "project = ? AND region = ? AND id < ? ORDER BY id DESC"
        for row in self._rows(where, project, region, 2**63 - 1 if before is None else before):
            try:
                resource = self._resource(row)
            except VertexApiError:
                continue  # its job is gone: a reset was killed when it had removed only the jobs
            yield row.id, resource

    def _resource(self, row: _PipelineRow) -> dict[str, Any]:
        job = self._jobs.of_pipeline(row.job)
        return {
            "name": f"projects/{row.project}/locations/{row.region}/trainingPipelines/{row.id}",
            **row.pipeline,
            "trainingTaskMetadata": {"backingCustomJob": job["name"]},
            "state": _state(job["state"]),
            **{name: job[name] for name in _SHARED if name in job},
        }

    def _rows(self, where: str, *values: Any) -> Sequence[_PipelineRow]:
        query = f"SELECT id, project, region, job, pipeline FROM pipelines WHERE {where}"  # noqa: S608
        with self.lock:
            rows = self._db.execute(query, values).fetchall()
        return [
            _PipelineRow(id=number, project=project, region=region, job=job, pipeline=json.loads(pipeline))
            for number, project, region, job, pipeline in rows
        ]


def _state(state: str) -> str:
    """Return the state of a pipeline, given the state of its custom job."""
    return _STATES.get(state, state.replace("JOB_", "PIPELINE_", 1))


def custom_job(pipeline: Mapping[str, Any], region: str) -> dict[str, Any]:
    """Return the custom job that a pipeline runs, or raise the error that names all mistakes of the pipeline."""
    mistakes: Problems = []
    definition = pipeline.get("trainingTaskDefinition", "")
    if not definition:
        mistakes.append(
            (f"{_FIELD}.training_task_definition", f"Required field is not set: {_FIELD}.training_task_definition.")
        )
    elif definition != CUSTOM_TASK:
        text = (
            f"Unsupported training task definition: {definition[:300]!r}. podlift's emulator runs custom training only: "
            f"{CUSTOM_TASK}"
        )
        mistakes.append((f"{_FIELD}.training_task_definition", text))
    if "inputDataConfig" in pipeline:
        text = "podlift's emulator has no managed datasets: input_data_config cannot be set."
        mistakes.append((f"{_FIELD}.input_data_config", text))
    if "modelToUpload" in pipeline:
        # Vertex AI would fail a pipeline that has no model at its end.
        text = (
            "podlift's emulator uploads no model when a training pipeline ends: model_to_upload cannot be set. Next: leave "
            "out model_display_name and model_serving_container_image_uri, and upload the model in a separate step."
        )
        mistakes.append((f"{_FIELD}.model_to_upload", text))
    if "trainingTaskInputs" not in pipeline:
        mistakes.append((_INPUTS, f"Required field is not set: {_INPUTS}."))
    if mistakes:
        raise invalid([*_named(pipeline), *mistakes])
    spec = _task_inputs(pipeline["trainingTaskInputs"])
    job = {"displayName": pipeline.get("displayName", ""), "jobSpec": spec}
    job |= {name: pipeline[name] for name in ("labels", "encryptionSpec") if name in pipeline}
    if problems := [(_renamed(field), _renamed(text)) for field, text in bodies.problems(job, region)]:
        raise invalid(problems)
    name = job["displayName"][: bodies.MAX_NAME - len(_SUFFIX)]
    return {**job, "displayName": f"{name}{_SUFFIX}"}


def _named(pipeline: Mapping[str, Any]) -> Problems:
    if pipeline.get("displayName"):
        return []
    return [(f"{_FIELD}.display_name", f"Required field is not set: {_FIELD}.display_name.")]


def _task_inputs(inputs: Any) -> dict[str, Any]:
    spec, problems = read_message("CustomJobSpec", _with_integers(inputs), _INPUTS)
    if problems:
        text = f"Unable to parse `{_INPUTS}` into custom task `inputs` defined in the file: {CUSTOM_TASK}"
        raise invalid([(_INPUTS, text), *problems])
    return spec


def _with_integers(value: Any) -> Any:
    """Return a value of a Struct, which stores all numbers as floating-point, with whole numbers as integers."""
    if isinstance(value, dict):
        return {name: _with_integers(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_with_integers(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _renamed(text: str) -> str:
    return text.replace("custom_job.job_spec", _INPUTS).replace("custom_job.", f"{_FIELD}.")
