"""The keeper of a firing as a pipeline of one task, for a schedule of Vertex AI, which starts pipeline jobs only. Pure.

The container is that of the custom job that Cloud Scheduler posts. What is added tells it for which slot it was started.

Sources: api/v2alpha1/pipeline_spec.proto and kfp.dsl of kubeflow/pipelines (read 2026-11-23), and the messages PipelineJob and
Schedule of google.cloud.aiplatform_v1.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..triggers import TriggerDraft
from . import scheduled_keeper
from .keeper_labels import BY_CRON, CAUSE, CREATED, DIGEST, JOB, SCHEDULE_ID, SLOT_TIME
from .own_schedules import pipeline_root
from .scheduled_keeper import KeeperFiles

_TASK, _COMPONENT, _EXECUTOR = "keeper", "comp-keeper", "exec-keeper"
# The variables of the container, each with the placeholder that Vertex AI replaces when it starts the task.
_VARIABLES = {
    SLOT_TIME: "{{$.pipeline_job_schedule_time_utc}}",
    CREATED: "{{$.pipeline_job_create_time_utc}}",
    JOB: "{{$.pipeline_job_resource_name}}",
}


def body(draft: TriggerDraft, found: KeeperFiles, name: str) -> Mapping[str, object]:
    """Return the pipeline job; `name` is that of the pipeline."""
    job = scheduled_keeper.body(draft, found)
    spec, labels = job["jobSpec"], job["labels"]
    if not isinstance(spec, dict) or not isinstance(labels, dict):
        raise TypeError("A custom job has a spec and labels.")
    container = spec["workerPoolSpecs"][0]["containerSpec"]
    return {
        "displayName": job["displayName"],
        "labels": {**labels, SCHEDULE_ID: draft.id, DIGEST: draft.digest},
        "pipelineSpec": _spec(container, name),
        "runtimeConfig": {
            "gcsOutputDirectory": pipeline_root(draft.plan.root, draft.schedule),
            "parameterValues": {CAUSE: BY_CRON},
        },
        "serviceAccount": spec["serviceAccount"],
    }


def _spec(container: Mapping[str, object], name: str) -> Mapping[str, object]:
    args = container["args"]
    if not isinstance(args, list):
        raise TypeError("A container has arguments.")
    inputs = [CAUSE, *_VARIABLES]
    executor = {
        "image": container["imageUri"],
        "command": container["command"],
        "args": [*args, *(f"{each}={{{{$.inputs.parameters['{each}']}}}}" for each in inputs)],
    }
    task = {
        "taskInfo": {"name": _TASK},
        "componentRef": {"name": _COMPONENT},
        # A cached keeper would not run: its slot would be lost.
        "cachingOptions": {"enableCache": False},
        "inputs": {
            "parameters": {
                CAUSE: {"componentInputParameter": CAUSE},
                **{each: {"runtimeValue": {"constant": placeholder}} for each, placeholder in _VARIABLES.items()},
            }
        },
    }
    return {
        "schemaVersion": "2.1.0",
        "pipelineInfo": {"name": name},
        "deploymentSpec": {"executors": {_EXECUTOR: {"container": executor}}},
        "components": {_COMPONENT: {"executorLabel": _EXECUTOR, "inputDefinitions": _strings(inputs)}},
        "root": {"dag": {"tasks": {_TASK: task}}, "inputDefinitions": _strings([CAUSE])},
    }


def _strings(names: list[str]) -> Mapping[str, object]:
    return {"parameters": {each: {"parameterType": "STRING"} for each in names}}
