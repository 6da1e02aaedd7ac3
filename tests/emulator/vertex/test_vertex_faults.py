"""Faults on request as Google's client meets them, of jobs and of the service: denials, silence, lost lines, no machines."""

from __future__ import annotations

import json
from typing import Any

import pytest
import requests
from google.api_core import exceptions
from google.cloud.aiplatform_v1.types import JobState
from served import PARENT, WAIT_S, Served, body, pool

from sdk.emulator.faults import parse_faults
from sdk.errors import InputError


def names(vertex: Served) -> list[str]:
    return [job.name for job in vertex.client.list_custom_jobs(parent=PARENT, timeout=WAIT_S)]


def count(vertex: Served) -> int:
    return len(names(vertex))


@pytest.mark.fidelity("lost-replies", "emulator")
@pytest.mark.parametrize(("when", "left"), [("after", 1), ("before", 0)])
def test_a_reply_that_is_lost_leaves_a_job_behind_and_a_lost_request_none(vertex, when: str, left: int) -> None:
    about = {"operation": "customJobs.create", "display_name": "^digits$"}
    status = {"kind": f"status_{when}", "nth": [2, 3], "times": 1, "status": 503, **about}
    vertex.faults({"kind": f"drop_{when}", "nth": 1, **about}, status)
    for expected, error in enumerate((requests.ConnectionError, exceptions.ServiceUnavailable), 1):
        with pytest.raises(error):
            vertex.create()
        assert count(vertex) == expected * left
    vertex.create()
    assert count(vertex) == 2 * left + 1
    told = vertex.ask("GET", "/_faults").json()["faults"]
    assert [(each["api"], each["matched"], each["fired"]) for each in told] == [("vertex", 3, 1), ("vertex", 3, 1)]


@pytest.mark.fidelity("lost-replies", "emulator")
def test_a_late_list_lacks_a_job_that_is_there(vertex) -> None:
    vertex.faults({"kind": "late_list", "lists": 2, "nth": 2})
    vertex.create()
    late = vertex.create()
    assert vertex.get(late).name == late.name
    assert [count(vertex) for _ in range(4)] == [1, 1, 2, 2]


@pytest.mark.fidelity("quota", "emulator")
def test_a_quota_that_is_too_small_refuses_at_once(vertex) -> None:
    vertex.faults({"kind": "quota"})
    l4 = {"machine_type": "g2-standard-4", "accelerator_type": "NVIDIA_L4", "accelerator_count": 1}
    t4 = {"machine_type": "n1-standard-4", "accelerator_type": "NVIDIA_TESLA_T4", "accelerator_count": 1}
    v5e = {"machine_type": "ct5lp-hightpu-1t", "tpu_topology": "1x1"}
    metric = "aiplatform.googleapis.com/custom_model_training_"
    for machine, strategy, expected in (
        (l4, "STANDARD", "nvidia_l4_gpus"),
        (l4, "SPOT", "preemptible_nvidia_l4_gpus"),
        (t4, "STANDARD", "nvidia_t4_gpus"),
        (v5e, "STANDARD", "tpu_v5e"),
        ({"machine_type": "n1-standard-4"}, "STANDARD", "cpus"),
        ({"machine_type": "n2-standard-4"}, "STANDARD", "n2_cpus"),
    ):
        spec = {"worker_pool_specs": [pool(1, machine_spec=machine)], "scheduling": {"strategy": strategy}}
        with pytest.raises(exceptions.TooManyRequests) as caught:
            vertex.create({"display_name": "x", "job_spec": spec})
        assert str(caught.value).endswith(f"The following quota metrics exceed quota limits: {metric}{expected}")
    assert count(vertex) == 0


@pytest.mark.fidelity("quota", "emulator")
def test_a_quota_that_is_in_use_holds_the_job_in_the_queue(vertex) -> None:
    vertex.faults({"kind": "hold", "nth": 1})
    held, free = vertex.create(), vertex.create()
    vertex.until(free, "JOB_STATE_RUNNING")
    assert vertex.get(held).state == JobState.JOB_STATE_QUEUED
    vertex.faults()
    vertex.until(held, "JOB_STATE_RUNNING")


def test_jobs_beyond_the_capacity_wait_for_their_turn(serve) -> None:
    vertex = serve(capacity=3)
    first, second, third = vertex.create(body(1)), vertex.create(body(1)), vertex.create()
    vertex.until(first, "JOB_STATE_RUNNING")
    vertex.until(third, "JOB_STATE_RUNNING")
    assert vertex.get(second).state == JobState.JOB_STATE_QUEUED
    vertex.launcher.of(first)[0].codes["workerpool0-0"] = 0
    vertex.until(second, "JOB_STATE_RUNNING")
    too_large = vertex.create(body(9))
    for job in (second, third):
        vertex.launcher.of(job)[0].codes["workerpool0-0"] = 0
    vertex.until(too_large, "JOB_STATE_RUNNING")


def spot(workers: int = 1, **more) -> dict:
    return body(workers, scheduling={"strategy": "SPOT", "restart_job_on_worker_restart": True, **more})


def test_a_line_in_a_log_takes_a_machine_away_once(vertex) -> None:
    vertex.faults({"kind": "preempt", "replica": "workerpool1-0", "log": "step 40$"})
    job, first = vertex.runs(spot())
    first.emit("workerpool0-0", "stdout", "step 4")
    assert first.calls == ["start"]
    first.emit("workerpool0-0", "stdout", "step 40")
    vertex.running(job, 2)
    assert first.calls == ["start", "preempt workerpool1-0", "terminate", "close"]
    second = vertex.launcher.of(job)[1]
    second.emit("workerpool0-0", "stdout", "step 40")
    second.codes["workerpool0-0"] = 0
    done = vertex.over(job)
    assert done.state == JobState.JOB_STATE_SUCCEEDED
    assert done.start_time < done.end_time
    assert "preempt workerpool1-0" not in second.calls, "the same line again does no harm"
    said = [each["textPayload"] for each in vertex.lines(job, " AND resource.labels.task_name=service")]
    assert said.count("Job is running.") == 2
    assert "The machine of workerpool1-0 is being taken away." in said


def test_preempt_out_of_memory_and_internal_errors_by_request(vertex) -> None:
    job, _ = vertex.runs(spot())
    assert vertex.request(job, "preempt", replica="workerpool1-0").json() == {"happened": True}
    vertex.running(job, 2)
    assert vertex.request(job, "internal").json() == {"happened": True}
    vertex.running(job, 3)
    assert vertex.request(job, "oom", replica="workerpool1-0").json() == {"happened": True}
    message = vertex.over(job).error.message
    assert message.startswith("The replica workerpool1-0 ran out of memory and exited with a non-zero")
    assert vertex.request(job, "oom").json() == {"happened": False}
    assert vertex.ask("POST", "/_vertex/jobs/7:oom").status_code == 404
    wrong = vertex.request(job, "oom", replica="workerpool9-0")
    assert wrong.status_code == 400
    assert "Known: workerpool0-0, workerpool1-0." in wrong.json()["error"]["message"]


def test_a_gang_that_cannot_start_is_an_internal_error_with_its_reason(vertex, capfd) -> None:
    def script(group) -> None:
        raise OSError("no ports left")

    vertex.launcher.script = script
    failed = vertex.over(vertex.create())
    assert (failed.state, failed.error.code) == (JobState.JOB_STATE_FAILED, 13)
    assert failed.error.message == "Internal error occurred for the current attempt: OSError: no ports left"
    assert "no ports left" in capfd.readouterr().err


def printed(vertex: Served, job: Any) -> list[str]:
    return [entry["textPayload"] for entry in vertex.lines(job, " AND resource.labels.task_name!=service")]


@pytest.mark.fidelity("denied-rights", "emulator")
def test_a_denied_operation_names_its_permission_and_does_nothing(vertex: Served) -> None:
    job = vertex.create()
    calls = {
        "create": lambda: vertex.create(),
        "get": lambda: vertex.get(job),
        "list": lambda: names(vertex),
        "cancel": lambda: vertex.client.cancel_custom_job(name=job.name, timeout=WAIT_S),
    }
    vertex.faults(*({"kind": "deny", "operation": f"customJobs.{each}"} for each in calls))
    for operation, call in calls.items():
        with pytest.raises(exceptions.Forbidden, match=rf"Permission 'aiplatform\.customJobs\.{operation}' denied"):
            call()
    vertex.faults()
    assert names(vertex) == [job.name]
    assert vertex.get(job).state != JobState.JOB_STATE_CANCELLING


@pytest.mark.parametrize(("kind", "created"), [("silent_before", 0), ("silent_after", 1)])
def test_a_silent_service_takes_the_request_and_never_answers(vertex: Served, kind: str, created: int) -> None:
    rules = [
        {"api": "vertex", "kind": kind, "operation": "customJobs.create"},
        {"kind": kind, "operation": "buckets.insert"},
    ]
    assert vertex.ask("POST", "/_faults", rules).status_code == 200
    with pytest.raises(requests.exceptions.ReadTimeout):
        vertex.client.create_custom_job(parent=PARENT, custom_job=body(), timeout=0.3)
    with pytest.raises(requests.exceptions.ReadTimeout):
        requests.post(f"{vertex.url}/storage/v1/b?project=p", json={"name": "silent-bucket"}, timeout=0.3)
    vertex.faults()
    assert count(vertex) == created
    assert vertex.ask("GET", "/storage/v1/b/silent-bucket").status_code == (200 if created else 404)


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


def test_a_job_expires_by_a_rule_after_its_time_in_the_queue(serve) -> None:
    vertex = serve(frozen=True)
    vertex.faults({"kind": "expire", "seconds": 3600, "display_name": "^digits$"})
    job = vertex.create()
    vertex.advance(3599, jobs=True)
    assert vertex.get(job).state == JobState.JOB_STATE_QUEUED
    vertex.advance(1, jobs=True)
    assert vertex.over(job).state == JobState.JOB_STATE_EXPIRED
    assert vertex.launcher.of(job) == []


@pytest.mark.fidelity("late-logs", "emulator")
def test_lines_are_lost_or_come_late_and_keep_their_time(serve) -> None:
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
    running, _ = vertex.runs(body(scheduling={"strategy": "SPOT"}))
    vertex.faults({"kind": "stockout", "region": "us-central1"})
    europe = PARENT.replace("us-central1", "europe-west4")
    elsewhere = vertex.client.create_custom_job(parent=europe, custom_job=body(), timeout=WAIT_S)
    assert vertex.over(vertex.create()).error.message.startswith("Resources are insufficient in region: us-central1.")
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
