"""The calls of the job service, made by Google's own client."""

from __future__ import annotations

import pytest
from google.api_core import exceptions
from google.cloud.aiplatform_v1.types import CustomJob, JobState
from served import PARENT, WAIT_S, Served, body


def test_a_job_is_made_runs_and_succeeds_when_its_chief_exits(vertex) -> None:
    made = vertex.create(body(2, scheduling={"timeout": "3600s", "strategy": "SPOT"}))
    assert made.state == JobState.JOB_STATE_QUEUED
    assert made.name.startswith("projects/") and made.name.split("/")[1].isdigit()
    assert CustomJob.to_dict(made)["job_spec"]["worker_pool_specs"][1]["replica_count"] == "2"
    running = vertex.until(made, "JOB_STATE_RUNNING")
    assert running.start_time and not running.end_time
    (group,) = vertex.launcher.of(made)
    assert group.job["jobSpec"]["workerPoolSpecs"][1]["replicaCount"] == 2
    group.codes["workerpool0-0"] = 0
    done = vertex.over(made)
    assert done.state == JobState.JOB_STATE_SUCCEEDED
    assert done.end_time >= done.start_time >= done.create_time
    assert group.calls == ["start", "terminate", "close"]


def test_cancel_and_delete(vertex) -> None:
    made = vertex.create()
    vertex.until(made, "JOB_STATE_RUNNING")
    with pytest.raises(exceptions.BadRequest, match="only one that has ended"):
        vertex.client.delete_custom_job(name=made.name, timeout=WAIT_S)
    vertex.client.cancel_custom_job(name=made.name, timeout=WAIT_S)
    gone = vertex.over(made)
    assert (gone.state, gone.error.code) == (JobState.JOB_STATE_CANCELLED, 1)
    vertex.client.cancel_custom_job(name=made.name, timeout=WAIT_S)
    operation = vertex.client.delete_custom_job(name=made.name, timeout=WAIT_S)
    assert operation.result(timeout=WAIT_S) is not None
    for call in (vertex.client.get_custom_job, vertex.client.cancel_custom_job, vertex.client.delete_custom_job):
        with pytest.raises(exceptions.NotFound):
            call(name=made.name, timeout=WAIT_S)


def test_a_project_may_be_named_by_its_number(vertex) -> None:
    made = vertex.create()
    job = made.name.rpartition("/")[2]
    named = vertex.client.get_custom_job(name=f"{PARENT}/customJobs/{job}", timeout=WAIT_S)
    assert named.name == made.name
    for other in (
        f"{PARENT.replace('acme', 'other')}/customJobs/{job}",
        f"{PARENT.replace('us-central1', 'us-east4')}/customJobs/{job}",
    ):
        with pytest.raises(exceptions.NotFound):
            vertex.client.get_custom_job(name=other, timeout=WAIT_S)


def test_an_image_that_was_built_and_is_gone_is_not_run(vertex: Served) -> None:
    name = "us-central1-docker.pkg.dev/acme/podlift/cpu"
    build = {"steps": [{"name": "gcr.io/cloud-builders/docker", "args": ["build", "."]}], "images": [f"{name}:t1"]}
    made = vertex.ask("POST", f"/v1/{PARENT}/builds", build).json()["metadata"]["build"]["id"]
    ended = [vertex.ask("GET", f"/v1/{PARENT}/builds/{made}").json() for _ in range(2)][-1]
    digest = ended["results"]["images"][0]["digest"]

    def job(image: str) -> dict:
        found = body(0)
        found["job_spec"]["worker_pool_specs"][0]["container_spec"]["image_uri"] = image
        return found

    for there in (f"{name}:t1", f"{name}@{digest}", f"{name}:emulated@{digest}"):
        vertex.create(job(there))
    for gone in (f"{name}:t2", f"{name}", f"{name}@sha256:{'0' * 64}", f"{name}:emulated@sha256:{'0' * 64}"):
        with pytest.raises(exceptions.BadRequest, match="was not found"):
            vertex.create(job(gone))
    # An image that the registry has never had may be anywhere.
    vertex.create(job("us-central1-docker.pkg.dev/acme/podlift/other:1"))
    vertex.ask("POST", "/_reset")
    with pytest.raises(exceptions.BadRequest, match="was not found"):
        vertex.create(job(f"{name}:emulated@{digest}"))
