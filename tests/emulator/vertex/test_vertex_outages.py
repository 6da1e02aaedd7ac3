"""Faults of the service itself: denials, missing answers, given up jobs, lost lines of the log, missing machines."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import requests
from google.api_core import exceptions
from google.cloud.aiplatform_v1.types import JobState
from served import PARENT, WAIT_S, Served, body

from sdk.emulator.faults import parse_faults
from sdk.errors import InputError

EUROPE = "projects/acme/locations/europe-west4"
SPOT = {"scheduling": {"strategy": "SPOT"}}


def create(vertex: Served, parent: str, **spec: Any) -> Any:
    return vertex.client.create_custom_job(parent=parent, custom_job=body(**spec), timeout=WAIT_S)


def printed(vertex: Served, job: Any) -> list[str]:
    return [entry["textPayload"] for entry in vertex.lines(job, " AND resource.labels.task_name!=service")]


def names(vertex: Served) -> list[str]:
    return [job.name for job in vertex.client.list_custom_jobs(parent=PARENT, timeout=WAIT_S)]


@pytest.mark.fidelity("denied-rights", "emulator")
def test_a_denied_operation_names_its_permission_and_does_nothing(vertex: Served) -> None:
    job = vertex.create()
    vertex.faults(
        *({"kind": "deny", "operation": f"customJobs.{each}"} for each in ("create", "get", "list", "cancel"))
    )
    client = vertex.client
    for operation, call in (
        ("create", lambda: vertex.create()),
        ("get", lambda: client.get_custom_job(name=job.name, timeout=WAIT_S)),
        ("list", lambda: names(vertex)),
        ("cancel", lambda: client.cancel_custom_job(name=job.name, timeout=WAIT_S)),
    ):
        with pytest.raises(exceptions.Forbidden, match=rf"Permission 'aiplatform\.customJobs\.{operation}' denied"):
            call()
    vertex.faults()
    assert names(vertex) == [job.name]
    assert vertex.get(job).state != JobState.JOB_STATE_CANCELLING


@pytest.mark.parametrize(("kind", "created"), [("silent_before", 0), ("silent_after", 1)])
def test_a_silent_service_takes_the_request_and_never_answers(vertex: Served, kind: str, created: int) -> None:
    vertex.faults({"kind": kind, "operation": "customJobs.create"})
    with pytest.raises(requests.exceptions.ReadTimeout):
        vertex.client.create_custom_job(parent=PARENT, custom_job=body(), timeout=0.3)
    assert len(names(vertex)) == created


def test_a_job_expires_on_request_in_the_queue_and_while_it_runs(vertex: Served) -> None:
    vertex.faults({"kind": "hold", "nth": 1})
    waiting, (running, _) = vertex.create(), vertex.runs()
    for job in (waiting, running):
        assert vertex.request(job, "expire").json() == {"happened": True}
        over = vertex.over(job)
        assert over.state == JobState.JOB_STATE_EXPIRED
        assert not over.error.message, "Google sets it for FAILED and CANCELLED only"
        assert vertex.request(job, "expire").json() == {"happened": False}
    assert vertex.launcher.of(waiting) == []


def test_a_job_expires_by_a_rule_after_its_time_in_the_queue(serve: Callable[..., Served]) -> None:
    vertex = serve(frozen=True)
    vertex.faults({"kind": "expire", "seconds": 3600, "display_name": "^digits$"})
    job = vertex.create()
    vertex.advance(3599, jobs=True)
    assert vertex.get(job).state == JobState.JOB_STATE_QUEUED
    vertex.advance(1, jobs=True)
    assert vertex.over(job).state == JobState.JOB_STATE_EXPIRED
    assert vertex.launcher.of(job) == []


@pytest.mark.fidelity("late-logs", "emulator")
def test_lines_are_lost_or_come_late_and_keep_their_time(serve: Callable[..., Served]) -> None:
    vertex = serve(frozen=True)
    job, group = vertex.runs(body(1))
    vertex.faults(
        {"kind": "lost_line", "log": "step 2$"},
        {"kind": "late_line", "log": "step 3$", "seconds": 60},
        {"kind": "late_line", "writer": "workerpool1-0"},
    )
    group.emit("workerpool1-0", "stdout", "worker")
    for step in range(1, 5):
        group.emit("workerpool0-0", "stdout", f"step {step}")
    assert printed(vertex, job) == ["step 1", "step 4"]
    vertex.advance(61, jobs=True)
    group.emit("workerpool0-0", "stdout", "end")
    assert printed(vertex, job) == ["step 1", "step 3", "step 4", "end"]
    late = vertex.lines(job, ' AND textPayload="step 3"')[0]
    assert late["timestamp"] < late["receiveTimestamp"]
    vertex.faults()
    assert printed(vertex, job) == ["worker", "step 1", "step 3", "step 4", "end"]


def test_only_a_region_without_machines_refuses_new_and_restarted_jobs(vertex: Served) -> None:
    running = create(vertex, PARENT, **SPOT)
    vertex.until(running, "JOB_STATE_RUNNING")
    vertex.faults({"kind": "stockout", "region": "us-central1"})
    new, elsewhere = create(vertex, PARENT), create(vertex, EUROPE)
    assert vertex.over(new).error.message.startswith("Resources are insufficient in region: us-central1.")
    vertex.until(elsewhere, "JOB_STATE_RUNNING")
    assert vertex.get(running).state == JobState.JOB_STATE_RUNNING
    vertex.request(running, "preempt")
    over = vertex.over(running)
    assert (over.state, over.error.code) == (JobState.JOB_STATE_FAILED, 8)


def test_a_misspelt_rule_is_refused_with_the_nearest_word() -> None:
    rules = [
        {"api": "vertex", "kind": "silent_befor"},
        {"api": "vertex", "kind": "deny", "operation": "customJobs.creat"},
        {"api": "vertex", "kind": "late_line", "writr": "service"},
        {"api": "vertex", "kind": "stockout", "region": "europe"},
        {"kind": "expire"},
        {"kind": "deny", "form_s": 1, "from_s": -1},
        3,
        {"api": "vertex", "kind": "preempt", "log": "(", "nth": 0},
        {"api": "vertex", "kind": "late_list", "lists": 1.5},
    ]
    with pytest.raises(InputError) as caught:
        parse_faults(json.dumps(rules))
    assert caught.value.problems[:7] == (
        "Fault 1: unknown kind. Received: 'silent_befor'. Did you mean 'silent_before'?",
        "Fault 2: unknown operation. Received: 'customJobs.creat'. Did you mean 'customJobs.create'?",
        "Fault 3 has no field 'writr'. Did you mean 'writer'?",
        "Fault 4: region is a region such as us-central1. Received: 'europe'.",
        'Fault 5: unknown kind. Received: \'expire\'. It is a kind of "api": "vertex".',
        "Fault 6 has no field 'form_s'. Did you mean 'from_s'?",
        "Fault 6: from_s is a number of seconds. Received: -1.",
    )
    words = ("is not an object", "nth is a number", "log is a regular expression", "lists is a number")
    assert len(caught.value.problems) == 11
    assert all(word in problem for word, problem in zip(words, caught.value.problems[7:], strict=True))


def test_a_log_line_kills_a_container_and_the_same_line_begins_a_stockout(vertex) -> None:
    line = {"log": "step 4$", "writer": "workerpool1-0"}
    kill = {"kind": "kill", "replica": "workerpool1-0", **line}
    vertex.faults(kill, {"kind": "stockout", "times": 3, "display_name": "^digits$", **line})
    job, group = vertex.runs(body(2))
    group.emit("workerpool0-0", "stdout", "step 4")
    assert group.calls == ["start"]
    group.emit("workerpool1-0", "stdout", "step 4")
    failed = vertex.over(job)
    assert group.calls[:2] == ["start", "kill workerpool1-0"]
    assert "workerpool1-0 exited with a non-zero status of 137" in failed.error.message
    assert "Resources are insufficient in region" in vertex.over(vertex.create(body(2))).error.message
    vertex.until(vertex.create(body(2)), "JOB_STATE_RUNNING")


def test_a_silent_bucket_takes_the_request_and_never_answers(vertex: Served) -> None:
    rules = [{"kind": "silent_after", "operation": "buckets.insert"}]
    assert vertex.ask("POST", "/_faults", rules).status_code == 200
    with pytest.raises(requests.exceptions.ReadTimeout):
        requests.post(f"{vertex.url}/storage/v1/b?project=p", json={"name": "silent-bucket"}, timeout=0.3)
    assert vertex.ask("POST", "/_faults", []).status_code == 200
    assert vertex.ask("GET", "/storage/v1/b/silent-bucket").status_code == 200
