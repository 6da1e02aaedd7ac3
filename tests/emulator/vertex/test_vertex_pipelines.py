"""Training pipelines, asked by Google's client: each is the face of a custom job, and its inputs are a Struct."""

from __future__ import annotations

import pytest
from google.api_core import exceptions
from google.cloud.aiplatform_v1 import PipelineServiceClient
from google.cloud.aiplatform_v1.types import PipelineState, TrainingPipeline
from google.protobuf import json_format, struct_pb2
from hypothesis import given, settings
from hypothesis import strategies as st
from served import PARENT, WAIT_S, body, pool
from support import any_json

from sdk.emulator.vertex.errors import VertexApiError
from sdk.emulator.vertex.pipelines import CUSTOM_TASK, custom_job

# As CustomTrainingJob.run sends it.
UNSET = {"timeout": None, "max_wait_duration": None}
SCHEDULING = {**UNSET, "restart_job_on_worker_restart": False, "disable_retries": True, "strategy": 4}


def inputs(**more) -> dict:
    return {"worker_pool_specs": [pool(1), pool(2)], "scheduling": SCHEDULING, **more}


def pipeline(name: str = "digits", **more) -> TrainingPipeline:
    value = json_format.ParseDict(more.pop("inputs", inputs()), struct_pb2.Value())
    given = {"display_name": name, "training_task_definition": CUSTOM_TASK, "training_task_inputs": value, **more}
    return TrainingPipeline(given)


@pytest.fixture
def client(vertex) -> PipelineServiceClient:
    return vertex.connect(PipelineServiceClient)


def create(client: PipelineServiceClient, *args, **more) -> TrainingPipeline:
    return client.create_training_pipeline(parent=PARENT, training_pipeline=pipeline(*args, **more), timeout=WAIT_S)


def get(client: PipelineServiceClient, made: TrainingPipeline) -> TrainingPipeline:
    return client.get_training_pipeline(name=made.name, timeout=WAIT_S)


def job_of(vertex, made: TrainingPipeline):
    return vertex.client.get_custom_job(name=made.training_task_metadata["backingCustomJob"], timeout=WAIT_S)


def end(vertex, made: TrainingPipeline, code: int = 0) -> None:
    vertex.finish(job_of(vertex, made), code)


def test_a_pipeline_runs_a_custom_job_and_shows_its_state(vertex, client) -> None:
    made = create(client, labels={"team": "vision"})
    assert made.name.startswith("projects/") and "/locations/us-central1/trainingPipelines/" in made.name
    job = job_of(vertex, made)
    assert (job.display_name, dict(job.labels)) == ("digits-custom-job", {"team": "vision"})
    assert job.name.rpartition("/")[2] != made.name.rpartition("/")[2]
    assert job.job_spec.scheduling.strategy.name == "SPOT" and job.job_spec.scheduling.disable_retries
    assert [each.replica_count for each in job.job_spec.worker_pool_specs] == [1, 2]
    vertex.until(job, "JOB_STATE_RUNNING")
    running = get(client, made)
    assert running.state == PipelineState.PIPELINE_STATE_RUNNING and running.start_time and not running.end_time
    end(vertex, made)
    done = get(client, made)
    assert done.state == PipelineState.PIPELINE_STATE_SUCCEEDED and not done.error.code
    assert done.end_time >= done.start_time >= done.create_time
    assert done.training_task_inputs["scheduling"]["timeout"] is None
    assert done.training_task_inputs["worker_pool_specs"][1]["replica_count"] == 2


def test_a_pipeline_shows_the_failure_and_the_cancellation_of_its_job(vertex, client) -> None:
    failed = create(client)
    end(vertex, failed, code=3)
    failed = get(client, failed)
    assert (failed.state, failed.error.code) == (PipelineState.PIPELINE_STATE_FAILED, 3)
    assert failed.error == job_of(vertex, failed).error
    cancelled = create(client)
    client.cancel_training_pipeline(name=cancelled.name, timeout=WAIT_S)
    vertex.over(job_of(vertex, cancelled))
    cancelled = get(client, cancelled)
    assert (cancelled.state, cancelled.error.code) == (PipelineState.PIPELINE_STATE_CANCELLED, 1)
    client.cancel_training_pipeline(name=cancelled.name, timeout=WAIT_S)


def test_lists_have_filters_pages_and_masks_and_hold_nothing_of_jobs(vertex, client) -> None:
    vertex.create(body(0))
    made = [create(client, name).name for name in ("one", "two", "three")]
    end(vertex, get(client, TrainingPipeline(name=made[0])))
    assert names(client) == names(client, page_size=2) == made[::-1]
    assert names(client, filter='display_name:"t*" AND state!="PIPELINE_STATE_FAILED"') == [made[2], made[1]]
    assert names(client, filter='state="PIPELINE_STATE_SUCCEEDED"') == [made[0]]
    assert len(names(client, filter=f'training_task_definition="{CUSTOM_TASK}"')) == 3
    masked = vertex.ask("GET", f"/v1/{PARENT}/trainingPipelines?readMask=display_name&pageSize=1").json()
    assert masked["trainingPipelines"] == [{"displayName": "three"}] and masked["nextPageToken"]
    for wrong in ('state="JOB_STATE_RUNNING"', "nothing=1"):
        with pytest.raises(exceptions.BadRequest):
            names(client, filter=wrong)
    assert vertex.ask("GET", f"/v1/{PARENT}/customJobs?filter=training_task_definition=1").status_code == 400


def test_a_pipeline_is_deleted_after_its_end_and_without_its_job(vertex, client) -> None:
    made = create(client)
    with pytest.raises(exceptions.BadRequest, match="only one that has ended"):
        client.delete_training_pipeline(name=made.name, timeout=WAIT_S)
    end(vertex, made)
    operation = client.delete_training_pipeline(name=made.name, timeout=WAIT_S)
    assert operation.result(timeout=WAIT_S) is not None
    assert vertex.ask("GET", f"/v1/{operation.operation.name}").json()["done"] is True
    assert job_of(vertex, made).state.name == "JOB_STATE_SUCCEEDED"
    for call in (client.get_training_pipeline, client.cancel_training_pipeline, client.delete_training_pipeline):
        with pytest.raises(exceptions.NotFound):
            call(name=made.name, timeout=WAIT_S)


def names(client: PipelineServiceClient, **more) -> list[str]:
    return [each.name for each in client.list_training_pipelines(request={"parent": PARENT, **more}, timeout=WAIT_S)]


def test_pipelines_and_builds_survive_the_server_and_a_reset_removes_them(serve) -> None:
    builds, lists = f"/v1/{PARENT}/builds", [f"/v1/{PARENT}/{each}" for each in ("trainingPipelines", "builds")]
    server = serve()
    server.ask("POST", builds, {"steps": [{"name": "gcr.io/cloud-builders/docker", "args": ["build", "."]}]})
    client = server.connect(PipelineServiceClient)
    made = create(client)
    end(server, made)
    before = get(client, made)
    server.stop()
    server = serve()
    client = server.connect(PipelineServiceClient)
    assert get(client, made) == before
    newer = create(client)
    assert int(newer.name.rpartition("/")[2]) > int(made.name.rpartition("/")[2])
    assert len(server.ask("GET", builds).json()["builds"]) == 1
    server.ask("POST", "/_reset")
    assert [server.ask("GET", each).json() for each in lists] == [{}, {}]


KEYS = st.sampled_from(["worker_pool_specs", "scheduling", "strategy", "command", "x"])
JSON = any_json(st.floats(), st.just(1e300), keys=KEYS, leaves=100)


@settings(max_examples=60, deadline=None)
@given(JSON)
def test_no_inputs_are_a_defect_of_the_emulator(value) -> None:
    pipeline = {"displayName": "x", "trainingTaskDefinition": CUSTOM_TASK, "trainingTaskInputs": value}
    with pytest.raises(VertexApiError) as caught:
        custom_job(pipeline, "us-central1")
    assert caught.value.code == 400
