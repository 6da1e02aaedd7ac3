"""The job service by Google's client and on the wire, after a restart and for others; and the metadata server."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import requests
from google.api_core import exceptions
from google.cloud.aiplatform_v1.types import JobState
from served import PARENT, WAIT_S, body, full, pool
from support import files_with

from sdk.emulator import data_folder
from sdk.emulator.vertex.lifecycle import JobTimings
from sdk.process.redirect import tokens


def test_a_job_is_made_is_shown_on_the_wire_runs_and_succeeds_when_its_chief_exits(vertex) -> None:
    terms = {"timeout": "3600s", "strategy": "SPOT", "max_wait_duration": "0s"}
    made = vertex.create(body(2, scheduling=terms))
    assert made.state == JobState.JOB_STATE_QUEUED
    assert made.name.startswith("projects/") and made.name.split("/")[1].isdigit()
    told = vertex.ask("GET", f"/v1/{made.name}?$alt=json;enum-encoding=int").json()
    assert told["jobSpec"]["scheduling"] == {"timeout": "3600s", "strategy": 4, "maxWaitDuration": "0s"}
    assert told["jobSpec"]["workerPoolSpecs"][1]["replicaCount"] == "2"
    assert told["state"] in (1, 2, 3)
    assert "error" not in told and "endTime" not in told and "labels" not in told
    assert told["createTime"].endswith("Z") and len(told["createTime"]) == len("2026-01-01T00:00:00.000000Z")
    assert vertex.ask("GET", f"/v1/{made.name}").json()["state"].startswith("JOB_STATE_")
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
    path = f"/v1/{made.name}"
    vertex.until(made, "JOB_STATE_RUNNING")
    refused = vertex.ask("DELETE", path).json()["error"]
    assert (refused["code"], refused["status"]) == (400, "FAILED_PRECONDITION")
    assert "only one that has ended" in refused["message"] and "Cancel it first" in refused["message"]
    vertex.client.cancel_custom_job(name=made.name, timeout=WAIT_S)
    ended = vertex.over(made)
    assert (ended.state, ended.error.code) == (JobState.JOB_STATE_CANCELLED, 1)
    assert vertex.ask("POST", f"{path}:cancel", {}).content == b"{}"
    deleted = vertex.client.delete_custom_job(name=made.name, timeout=WAIT_S)
    assert deleted.operation.done and deleted.result(timeout=WAIT_S) is not None
    told = vertex.ask("GET", f"/v1/{deleted.operation.name}").json()
    assert (told["done"], told["response"]) == (True, {"@type": "type.googleapis.com/google.protobuf.Empty"})
    for call in (vertex.client.get_custom_job, vertex.client.cancel_custom_job, vertex.client.delete_custom_job):
        with pytest.raises(exceptions.NotFound):
            call(name=made.name, timeout=WAIT_S)
    gone = vertex.ask("GET", path).json()["error"]
    assert (gone["code"], gone["status"]) == (404, "NOT_FOUND")
    assert vertex.ask("GET", f"/v1/{PARENT}/customJobs").json() == {}


def test_a_project_may_be_named_by_its_number(vertex) -> None:
    made = vertex.create()
    job = made.name.rpartition("/")[2]
    named = vertex.client.get_custom_job(name=f"{PARENT}/customJobs/{job}", timeout=WAIT_S)
    assert named.name == made.name
    for elsewhere in (PARENT.replace("acme", "other"), PARENT.replace("us-central1", "us-east4")):
        with pytest.raises(exceptions.NotFound):
            vertex.client.get_custom_job(name=f"{elsewhere}/customJobs/{job}", timeout=WAIT_S)


def test_a_job_that_could_not_be_stored_does_not_run(serve) -> None:
    server = serve(capacity=1)
    server.store("vertex/jobs", full("INSERT ON jobs"))
    refused = server.ask("POST", f"/v1/{PARENT}/customJobs", body())
    assert refused.status_code == 500 and "disk is full" in refused.json()["error"]["message"]
    server.store("vertex/jobs", "DROP TRIGGER disk")
    again = server.create()
    server.running(again, 1)  # The first one would have its machine.
    assert [each.job_id for each in server.launcher.made] == [again.name.rpartition("/")[2]]


def test_jobs_survive_the_server_and_a_job_that_ran_has_failed(serve) -> None:
    server = serve(capacity=2)
    running = server.create(body(1))
    server.until(running, "JOB_STATE_RUNNING")
    waiting = server.create()
    server.stop()
    server = serve(capacity=2)
    failed = server.get(running)
    assert (failed.state, failed.error.code) == (JobState.JOB_STATE_FAILED, 13)
    assert "Internal error occurred for the current attempt: the emulator was restarted" in failed.error.message
    done = server.finish(waiting)
    lines = server.lines(waiting)
    server.stop()
    server = serve()
    assert server.get(waiting) == done
    assert server.lines(waiting) == lines
    newer = server.create()
    assert int(newer.name.rpartition("/")[2]) > int(waiting.name.rpartition("/")[2])


@pytest.mark.fidelity("late-errors", "emulator")
def test_the_error_may_come_later_than_the_state(serve) -> None:
    server = serve(frozen=True, timings=JobTimings(queue_s=0, provision_s=0, grace_s=0, error_s=60))
    job = server.create()
    assert not server.finish(job, code=1).error.message
    server.advance(61, jobs=True)
    found = server.get(job).error.message
    assert "non-zero status of 1. " in found
    assert "please check the logs: https://console.cloud.google.com/logs/viewer?project=" in found


TOKEN = """
from google.auth.compute_engine import Credentials, _metadata
from google.auth.transport.requests import Request
assert _metadata.ping(Request())
credentials = Credentials()
credentials.refresh(Request())
print(credentials.token, credentials.service_account_email)
"""


@pytest.mark.process
@pytest.mark.fidelity("metadata-server", "emulator")
def test_googles_credentials_get_a_token_from_the_metadata_server(vertex) -> None:
    # The library reads the variables when it is imported.
    place, token = vertex.url.removeprefix("http://").split("/")
    own = f"{place}/{tokens.replica_token(token, tokens.ReplicaIdentity(job='1', name='workerpool0-0'))}"
    env = {**os.environ, "GCE_METADATA_HOST": own, "GCE_METADATA_IP": own}
    found = subprocess.run([sys.executable, "-c", TOKEN], env=env, capture_output=True, text=True, timeout=WAIT_S)
    token, email = found.stdout.split() or found.stderr
    assert token
    assert email.endswith("@gcp-sa-aiplatform-cc.iam.gserviceaccount.com")


def test_the_metadata_server(vertex) -> None:
    def ask(path: str, **headers: str) -> requests.Response:
        return vertex.ask("GET", f"/computeMetadata/v1/{path}", headers={"Metadata-Flavor": "Google", **headers})

    assert vertex.ask("GET", "/computeMetadata/v1/project/project-id").status_code == 403
    assert ask("project/project-id", **{"X-Forwarded-For": "1.2.3.4"}).status_code == 403
    answer = ask("project/project-id")
    assert answer.text.endswith("-tp")
    assert answer.headers["metadata-flavor"] == "Google"
    assert ask("project/numeric-project-id").text.isdigit()
    token = ask("instance/service-accounts/default/token?scopes=x").json()
    assert token["token_type"] == "Bearer" and token["expires_in"] > 0
    assert "email" in ask("instance/service-accounts/default/?recursive=true").json()
    assert ask("instance/preempted").text == "FALSE"
    assert ask("instance/nothing").status_code == 404
    assert ask("instance/").text.splitlines() == ["service-accounts/", "preempted"]


def test_a_replicas_token_names_the_replica_and_opens_nothing_else(vertex) -> None:
    place, token = vertex.url.rsplit("/", 1)
    job = vertex.create(body(1, service_account="me@acme.iam.gserviceaccount.com"))
    vertex.until(job, "JOB_STATE_RUNNING")
    asks = tokens.ReplicaIdentity(job=job.name.rpartition("/")[2], name="workerpool1-0")
    own = tokens.replica_token(token, asks)
    flavor = {"Metadata-Flavor": "Google"}

    def ask(path: str, secret: str = own) -> requests.Response:
        return requests.get(f"{place}/{secret}{path}", headers=flavor, timeout=WAIT_S)

    email = "/computeMetadata/v1/instance/service-accounts/default/email"
    assert ask(email).text == "me@acme.iam.gserviceaccount.com"
    assert ask("").text == ask("/").text == "computeMetadata/\n"
    for path in ("/storage/v1/b?project=p", f"/v1/{PARENT}/customJobs", "/_requests", "/_clock", "//", "/bucket/x"):
        assert ask(path).status_code == 403, path
    forged = own.replace("workerpool1", "workerpool0")
    for secret in (own[:-1], own + "0", forged, "1.workerpool0-0.", "..", token[:-1]):
        assert ask(email, secret).status_code == 403, secret
    other = tokens.replica_token(token, tokens.ReplicaIdentity(job="1", name="workerpool0-0"))
    assert ask(email, other).text.endswith("@gcp-sa-aiplatform-cc.iam.gserviceaccount.com")


def open_to_others(folder: Path) -> list[str]:
    """Everything in a folder, and the folder itself, that other users may enter, read or change."""
    found = [folder, *folder.rglob("*")]
    return [str(each.relative_to(folder.parent)) for each in found if each.stat().st_mode & 0o077]


def test_the_variables_of_a_job_can_be_read_by_its_user_alone(serve, tmp_path) -> None:
    data, secret, given, before = tmp_path / "data", "not-for-others-" + "x" * 20, pool(), os.umask(0)
    given["container_spec"]["env"] = [{"name": "API_KEY", "value": secret}]
    try:
        served = serve()
        served.create({**body(), "job_spec": {"worker_pool_specs": [given]}})
        served.ask("POST", "/storage/v1/b?project=p", {"name": "mine"})
    finally:
        os.umask(before)
    assert files_with(secret, data), "the job is kept somewhere"
    assert open_to_others(data) == []


def test_a_folder_of_an_earlier_podlift_is_closed(serve, tmp_path) -> None:
    serve().stop()
    data = tmp_path / "data"
    for path in [data, *data.rglob("*")]:
        path.chmod(0o777 if path.is_dir() else 0o666)
    serve()
    assert open_to_others(data) == []


def test_a_folder_with_foreign_files_keeps_its_mode_and_new_files_in_it_are_private(tmp_path) -> None:
    shared = tmp_path / "project"
    shared.mkdir(mode=0o755)
    (shared / "train.py").write_text("")
    data_folder.make_data_folder(shared)
    data_folder.make_subfolder(shared / "vertex")
    database = data_folder.create_database(shared / "vertex" / "jobs.sqlite")
    assert stat.S_IMODE(shared.stat().st_mode) == 0o755
    assert stat.S_IMODE(database.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(database.stat().st_mode) == 0o600
