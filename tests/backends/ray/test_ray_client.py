"""A client and Ray's Jobs API: lost replies, refusals, and servers that are none, against the fake of its five routes."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from support import files_with

import sdk
from sdk.backends.ray.run import WAITING
from sdk.errors import InputError, PodliftError, UnavailableError
from sdk.process.redirect import proxy
from sdk.records.events import Event
from sdk.records.verdicts import SUCCEEDED
from sdk.status import Reason, State
from sdk.storage.posix_store import PosixStore

from .fake_ray import FakeRay

pytestmark = pytest.mark.process


@pytest.fixture
def ray() -> Iterator[FakeRay]:
    with FakeRay() as found:
        yield found


@pytest.fixture(autouse=True)
def _program(write) -> None:
    write("train.py", "print('trains')")


def submit(ray: FakeRay, root: Path, **target: object) -> sdk.Run:
    return sdk.submit("train.py", workers=2, backend=sdk.Ray(address=ray.address, **target), root=root)


@pytest.fixture
def run(ray: FakeRay, tmp_path: Path) -> sdk.Run:
    return submit(ray, tmp_path / "root")


def forget(ray: FakeRay, run: sdk.Run) -> None:
    """Remove the job of a run, which was submitted long ago."""
    ray.jobs.clear()
    os.utime(f"{run.plan.root.removeprefix('file://')}/runs/{run.id}/plan.json", (1_000_000_000, 1_000_000_000))


@pytest.mark.parametrize(("fault", "times", "requests"), [("lost", 1, 1), ("failing", 2, 3)])
def test_neither_a_lost_reply_nor_a_failed_request_starts_a_second_job(ray, tmp_path, fault, times, requests) -> None:
    setattr(ray, fault, times)
    run = submit(ray, tmp_path / "root")
    assert list(ray.jobs) == [f"{run.id}-1"]
    assert [body["submission_id"] for body in ray.bodies] == [f"{run.id}-1"] * requests
    assert run.status().vendor == "PENDING"


def test_a_rejected_job_ends_the_run_with_the_reason(ray: FakeRay, tmp_path: Path) -> None:
    ray.rejects = (400, "Traceback ...\nValueError: Invalid runtime_env: pip must be a list\n")
    with pytest.raises(PodliftError, match=r"pip must be a list.*podlift resume"):
        submit(ray, tmp_path / "root")
    (info,) = sdk.runs(root=tmp_path / "root")
    status = sdk.attach(info.url).status()
    assert (status.state, status.reason) == (State.FAILED, Reason.REFUSED)
    assert ray.jobs == {}


@pytest.mark.parametrize("status", ["PENDING", "RUNNING", "STOPPED", "SUCCEEDED", "FAILED"])
def test_every_state_of_a_job_is_a_state_of_its_run(ray: FakeRay, run: sdk.Run, status: str) -> None:
    ray.set(f"{run.id}-1", status)
    found = sdk.attach(run.url).status()
    assert found.service == f"Ray at {ray.address}"
    if status in WAITING:
        assert (found.state, found.reason) == WAITING[status]
    elif status == "FAILED":
        assert found.state is State.FAILED


def test_a_driver_that_ended_without_a_verdict_is_quoted_and_resumed_as_another_job(ray, run: sdk.Run) -> None:
    ray.logs[f"{run.id}-1"] = "starting\npodlift: /mnt/x cannot be read on node-7: No such file. Next: fix it.\n"
    ray.set(f"{run.id}-1", "FAILED", message="Job entrypoint command failed with exit code 3")
    status = run.wait(20)
    assert (status.state, status.reason) == (State.FAILED, Reason.REFUSED)
    assert status.failure.message.startswith("/mnt/x cannot be read on node-7")
    run.resume()
    assert list(ray.jobs) == [f"{run.id}-1", f"{run.id}-2"]


def test_a_job_that_the_cluster_has_forgotten_is_lost_and_can_be_resumed(ray: FakeRay, run: sdk.Run) -> None:
    ray.jobs.clear()
    # Submitted a moment ago, it may be about to be created.
    assert sdk.attach(run.url).status().state is State.PENDING
    forget(ray, run)
    status = sdk.attach(run.url).status()
    assert (status.state, status.reason) == (State.LOST, Reason.JOB_LOST)
    assert "podlift resume" in str(status.failure)
    sdk.attach(run.url).resume()
    assert list(ray.jobs) == [f"{run.id}-2"]


@pytest.mark.parametrize(("records", "state"), [(["collected"], State.SUCCEEDED), ([], State.LOST)])
def test_a_success_agreed_by_the_agents_holds_after_the_cluster_forgot_the_job(ray, run, records, state) -> None:
    store = PosixStore(run.url.removeprefix("file://"))
    for number, kind in enumerate(["attempt_started", *records], 1):
        event = Event(attempt=1, source="agent-0", sequence=number, kind=kind, time=float(number))
        store.put_new(f"events/0001.agent-0.{number:06d}.{kind}.json", [event.to_json()])
    store.put_new("attempts/0001/end.json", [json.dumps(asdict(SUCCEEDED)).encode()])
    forget(ray, run)
    assert sdk.attach(run.url).status().state is state


def test_a_run_can_be_looked_at_while_the_cluster_does_not_answer(tmp_path: Path) -> None:
    with FakeRay() as ray:
        run = submit(ray, tmp_path / "root")
    found = sdk.attach(run.url)
    assert found.status().state is State.PENDING
    assert "No Ray cluster can be reached" in found.why()


def test_a_job_that_waits_is_stopped_at_once(ray: FakeRay, run: sdk.Run) -> None:
    run.status()
    run.cancel(grace_s=60)
    assert ray.stopped == [f"{run.id}-1"]
    assert run.wait(20).state is State.CANCELLED


SERVERS = {
    "somebody else's": ({"foreign": True}, r"not the dashboard of a Ray cluster.*--ray-address"),
    "too old": ({"old": True, "version": "1.8.0"}, r"Ray 1\.8\.0, which has no Jobs API"),
}


@pytest.mark.parametrize("kind", SERVERS)
def test_a_server_without_rays_jobs_is_named_and_nothing_is_written(tmp_path: Path, kind: str) -> None:
    options, said = SERVERS[kind]
    with FakeRay(**options) as ray, pytest.raises(InputError, match=said):
        submit(ray, tmp_path / "root")
    # One that is gone:
    with pytest.raises(InputError, match=rf"No Ray cluster can be reached at {ray.address}.*--ray-address"):
        submit(ray, tmp_path / "root")
    assert files_with("", tmp_path / "root") == []


def test_a_token_comes_from_the_environment_and_is_stored_nowhere(tmp_path: Path, monkeypatch) -> None:
    headers = {"Authorization": "Bearer $MY_RAY_TOKEN"}
    monkeypatch.setenv("MY_RAY_TOKEN", "s3cr3t-of-this-cluster")
    with FakeRay(token="s3cr3t-of-this-cluster") as ray:
        run = submit(ray, tmp_path / "root", headers=headers)
        assert run.status().vendor == "PENDING"
        monkeypatch.setenv("MY_RAY_TOKEN", "another-one")
        with pytest.raises(InputError, match=r"does not accept this client.*--ray-headers") as refused:
            submit(ray, tmp_path / "root", headers=headers)
        assert "another-one" not in str(refused.value)
        monkeypatch.delenv("MY_RAY_TOKEN")
        with pytest.raises(InputError, match="MY_RAY_TOKEN is not set here"):
            submit(ray, tmp_path / "root", headers=headers)
        monkeypatch.setenv("HOME", str(tmp_path))
        with pytest.raises(InputError, match="401"):
            submit(ray, tmp_path / "root")
    assert files_with("s3cr3t-of-this-cluster", tmp_path) == []
    assert "s3cr3t" not in str(run.plan) + run.plan.to_json() + str(ray.bodies)


TOKEN = "0123456789abcdef" * 4


@pytest.mark.parametrize("where", ["RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "the home folder"])
def test_the_token_of_rays_own_clients_is_used_where_a_cluster_asks_for_one(tmp_path: Path, monkeypatch, where) -> None:
    home = tmp_path / "home"
    file = home / ".ray" / "auth_token"
    file.parent.mkdir(parents=True)
    file.write_text(f"{TOKEN}\n" if where == "the home folder" else "another-one")
    monkeypatch.setenv("HOME", str(home))
    if where == "RAY_AUTH_TOKEN":
        monkeypatch.setenv(where, TOKEN)
    elif where == "RAY_AUTH_TOKEN_PATH":
        (tmp_path / "token").write_text(TOKEN)
        monkeypatch.setenv(where, str(tmp_path / "token"))
    with FakeRay(token=TOKEN) as ray:
        run = submit(ray, tmp_path / "root")
        assert run.status().vendor == "PENDING"
        monkeypatch.setenv("MINE", "is-used-alone")
        with pytest.raises(InputError, match="does not accept this client"):
            submit(ray, tmp_path / "root", headers={"authorization": "Bearer $MINE"})
    assert files_with(TOKEN, tmp_path / "root") == []
    assert TOKEN not in str(ray.bodies)


def test_a_rejected_token_is_not_shown_and_a_cluster_without_tokens_receives_none(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", TOKEN)
    with FakeRay(token="another-one") as ray, pytest.raises(InputError, match=r"403.*RAY_AUTH_TOKEN") as refused:
        submit(ray, tmp_path / "root")
    assert TOKEN not in str(refused.value)
    with FakeRay(token=TOKEN) as ray:
        ray.rejects = 400, f"a server that repeats {TOKEN}"
        with pytest.raises(PodliftError, match="a server that repeats") as refused:
            submit(ray, tmp_path / "root")
    assert TOKEN not in str(refused.value)
    with FakeRay() as ray:
        submit(ray, tmp_path / "root")
    assert ray.tokens == {None}


def test_a_certificate_that_is_not_trusted_is_named_with_the_fix(tmp_path: Path) -> None:
    server = HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    context, _ = proxy._make_certificate(tmp_path)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        with pytest.raises(InputError, match=r"certificate of https://localhost.* is not accepted.*REQUESTS_CA_BUNDLE"):
            sdk.submit("train.py", backend=sdk.Ray(address=f"https://localhost:{server.server_port}"))
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_without_an_answer_the_error_says_that_the_start_of_the_run_is_unknown(ray: FakeRay, tmp_path: Path) -> None:
    ray.failing = 100
    with pytest.raises(UnavailableError, match=r"unknown whether the run .* was started.*podlift status"):
        submit(ray, tmp_path / "root")
