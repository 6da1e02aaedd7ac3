"""Faults on request, as Google's client meets them."""

from __future__ import annotations

import pytest
import requests
from google.api_core import exceptions
from google.cloud.aiplatform_v1.types import JobState
from served import PARENT, WAIT_S, body, pool


def count(vertex) -> int:
    return len(list(vertex.client.list_custom_jobs(parent=PARENT, timeout=WAIT_S)))


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
