"""Training pipelines, which the training job classes of Google's SDK create."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..messages import Problems, read_message
from . import bodies
from .environment import project_number
from .errors import invalid
from .jobs import CustomJobs, is_number
from .pipeline_table import CreateJob, PipelineRow, PipelineTable, pipeline_state

_DEFINITIONS = "gs://google-cloud-aiplatform/schema/trainingjob/definition/"
CUSTOM_TASK = f"{_DEFINITIONS}custom_task_1.0.0.yaml"
_FIELD = "training_pipeline"
_INPUTS = f"{_FIELD}.training_task_inputs"
_SUFFIX = "-custom-job"
_SHARED = ("createTime", "startTime", "endTime", "updateTime", "error")


class TrainingPipelines(PipelineTable):
    KIND, COLLECTION, TABLE = "TrainingPipeline", "trainingPipelines", "pipelines"
    SCHEMA = """
CREATE TABLE pipelines (
    id INTEGER PRIMARY KEY, project TEXT NOT NULL, region TEXT NOT NULL, job INTEGER NOT NULL, pipeline TEXT NOT NULL,
    deleted TEXT
);
CREATE INDEX of_place ON pipelines (project, region, id);
CREATE INDEX of_job ON pipelines (job);
"""

    def __init__(self, path: Path, jobs: CustomJobs, create_job: CreateJob) -> None:
        super().__init__(path, jobs, create_job, jobs.delete)

    def create(self, project: str, region: str, pipeline: dict[str, Any]) -> dict[str, Any]:
        job = custom_job(pipeline, region)
        made = self._create_job(project, region, job, _INPUTS)
        number, job_id = project_number(project), int(made["name"].rpartition("/")[2])
        with self._lock:
            last = self._db.execute("SELECT coalesce(max(id), 0) FROM pipelines").fetchone()[0]
            pipeline_id = max(self._jobs.new_id(), last + 1)
            values = (pipeline_id, number, region, job_id, json.dumps(pipeline))
            self._db.execute("INSERT INTO pipelines VALUES (?, ?, ?, ?, ?, NULL)", values)
        return self.get(project, region, str(pipeline_id))

    def _named(self, pipeline: str) -> Sequence[PipelineRow]:
        return self._rows("id = ?", int(pipeline)) if is_number(pipeline) else []

    def _resource(self, row: PipelineRow) -> dict[str, Any]:
        job = self._job(row)
        return {
            "name": f"projects/{row.project}/locations/{row.region}/trainingPipelines/{row.id}",
            **row.pipeline,
            "trainingTaskMetadata": {"backingCustomJob": job["name"]},
            "state": pipeline_state(job["state"]),
            **{name: job[name] for name in _SHARED if name in job},
        }


def custom_job(pipeline: Mapping[str, Any], region: str) -> dict[str, Any]:
    """Return the custom job that a pipeline runs, or raise the error that names all mistakes of the pipeline."""
    found: Problems = []
    definition = pipeline.get("trainingTaskDefinition", "")
    if not definition:
        found.append(
            (f"{_FIELD}.training_task_definition", f"Required field is not set: {_FIELD}.training_task_definition.")
        )
    elif definition != CUSTOM_TASK:
        text = (
            f"Unsupported training task definition: {definition[:300]!r}. podlift's emulator runs custom training only: "
            f"{CUSTOM_TASK}"
        )
        found.append((f"{_FIELD}.training_task_definition", text))
    if "inputDataConfig" in pipeline:
        text = "podlift's emulator has no managed datasets: input_data_config cannot be set."
        found.append((f"{_FIELD}.input_data_config", text))
    if "modelToUpload" in pipeline:
        # Vertex AI would fail a pipeline that has no model at its end.
        text = (
            "podlift's emulator uploads no model when a training pipeline ends: model_to_upload cannot be set. Next: leave "
            "out model_display_name and model_serving_container_image_uri, and upload the model in a step of its own."
        )
        found.append((f"{_FIELD}.model_to_upload", text))
    if "trainingTaskInputs" not in pipeline:
        found.append((_INPUTS, f"Required field is not set: {_INPUTS}."))
    if found:
        raise invalid([*_named(pipeline), *found])
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
    """Return a value of a Struct, whose numbers are all floating-point, with whole numbers as integers."""
    if isinstance(value, dict):
        return {name: _with_integers(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_with_integers(each) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _renamed(text: str) -> str:
    return text.replace("custom_job.job_spec", _INPUTS).replace("custom_job.", f"{_FIELD}.")
