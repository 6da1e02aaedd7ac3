"""The state of a job at Vertex AI and the run's records make one status."""

import dataclasses
from typing import Any

import pytest
from google.cloud.aiplatform_v1 import JobState

from sdk import Reason, State, Status
from sdk.backends.vertex.job import request, states
from sdk.backends.vertex.job.states import VendorJob, advised, answer, merge, state_name
from sdk.records.events import Event
from sdk.records.verdicts import SUCCEEDED, failed, final
from sdk.status import Failure

NAME = "projects/p/locations/us-central1/customJobs/77"
TASKS = ["chief-0", "worker-0", "worker-1"]


def job(state: str, **more: Any) -> VendorJob:
    return VendorJob(name=NAME, state=f"JOB_STATE_{state}", created=100.0, **more)


def status(state: str = "PENDING", reason: str = "submitted") -> Status:
    return Status(state=State(state), reason=Reason(reason), created=90.0, since=95.0)


def event(kind: str, time: float, attempt: int = 1, source: str = "chief-0", **data: Any) -> Event:
    return Event(attempt=attempt, source=source, sequence=int(time), kind=kind, time=time, data=data)


def test_every_state_of_googles_own_enum_has_a_name_and_a_meaning() -> None:
    assert [f"JOB_STATE_{name}" for name in states.NAMES] == [state.name for state in JobState]
    for state in JobState:
        told = merge(status(), job(state.name.removeprefix("JOB_STATE_")))
        assert told.vendor == state.name
        assert isinstance(told.state, State)
    ended = {state.name for state in JobState if VendorJob(name=NAME, state=state.name).over}
    assert {name.removeprefix("JOB_STATE_") for name in ended} == {
        "SUCCEEDED", "FAILED", "CANCELLED", "EXPIRED", "PARTIALLY_SUCCEEDED",
    }  # fmt: skip


@pytest.mark.parametrize(("value", "kept"), [(12, "JOB_STATE_12"), ("JOB_STATE_HIBERNATING", "JOB_STATE_HIBERNATING")])
def test_a_state_that_is_not_known_is_kept_and_changes_nothing(value, kept) -> None:
    before = status("RUNNING", "training")
    told = merge(before, VendorJob(name=NAME, state=state_name(value)))
    assert (told.state, told.reason, told.vendor) == (before.state, before.reason, kept)


@pytest.mark.parametrize(
    ("vendor", "state", "reason"),
    [
        ("QUEUED", "PENDING", "queued"),
        ("PENDING", "PENDING", "provisioning"),
        ("RUNNING", "PENDING", "preparing"),
        ("PAUSED", "PENDING", "queued"),
        ("CANCELLING", "RUNNING", "stopping"),
    ],
)
def test_before_the_first_record_the_vendor_names_the_reason_of_the_wait(vendor, state, reason) -> None:
    told = merge(status(), job(vendor))
    assert (told.state.value, told.reason.value) == (state, reason)
    assert told.console.startswith("https://console.cloud.google.com/")
    assert told.console.endswith("us-central1/training/77?project=p")


@pytest.mark.parametrize(
    ("before", "vendor", "after"),
    [
        (("RUNNING", "training"), "RUNNING", ("RUNNING", "training")),
        (("RUNNING", "training"), "PENDING", ("RUNNING", "restarting")),
        (("FAILED", "user_error"), "SUCCEEDED", ("FAILED", "user_error")),
    ],
    ids=["it trains", "another machine is waited for", "a verdict stays"],
)
def test_the_records_know_more_but_for_a_machine_that_is_waited_for(before, vendor, after) -> None:
    told = merge(status(*before), job(vendor))
    assert (told.state.value, told.reason.value) == after


def test_without_a_job_the_records_stand_alone() -> None:
    assert merge(status(), None) == dataclasses.replace(status(), service="Vertex AI")


STOCKOUT = "Resources are insufficient in region: us-central1."
EXITED = 'The replica workerpool1-1 exited with a non-zero status of 3. Termination reason: Error. Its "log".'
OVER_LIMIT = "The job was cancelled because it exceeded its timeout of 60 seconds."
RAN_61_S = {"message": "CANCELED", "code": 1, "started": 100.0, "ended": 161.0}


@pytest.mark.parametrize(
    ("vendor", "job_is", "more", "expected"),
    [
        ("SUCCEEDED", {}, {}, "SUCCEEDED done exit"),
        ("PARTIALLY_SUCCEEDED", {}, {"is_done": True}, "SUCCEEDED done exit"),
        ("PARTIALLY_SUCCEEDED", {}, {}, "FAILED infrastructure exit"),
        ("CANCELLED", {}, {}, "CANCELLED cancelled decision"),
        ("FAILED", {}, {}, "FAILED infrastructure exit"),
        ("FAILED", {"message": EXITED, "code": 3}, {}, "FAILED user_error exit"),
        ("FAILED", {"message": "Internal error occurred", "code": 13}, {}, "FAILED internal cause"),
        ("EXPIRED", {}, {}, "FAILED stockout cause"),
        # A spot machine that was taken away is a preemption, and one that never came is a stockout.
        ("FAILED", {"message": STOCKOUT, "started": 105.0}, {"provisioning": "spot"}, "FAILED preempted cause"),
        ("FAILED", {"message": STOCKOUT}, {"provisioning": "spot"}, "FAILED stockout cause"),
        ("FAILED", {"message": STOCKOUT, "started": 105.0}, {}, "FAILED stockout cause"),
        # A job that was ended at its limit has timed out, whatever the vendor calls it.
        ("CANCELLED", RAN_61_S, {"timeout_s": 60.0}, "FAILED timeout decision"),
        ("CANCELLED", RAN_61_S, {"timeout_s": 600.0}, "CANCELLED cancelled decision"),
        ("CANCELLED", {"message": OVER_LIMIT, "code": 1}, {}, "FAILED timeout decision"),
    ],
)
def test_how_a_job_ended_as_the_vendor_sees_it(vendor, job_is, more, expected) -> None:
    said = answer(job(vendor, **job_is), TASKS, **more)
    assert (said.job, said.time) == ("ended", job_is.get("ended"))
    assert said.end is not None
    assert f"{said.end.state.value} {said.end.reason.value} {said.knows}" == expected


def test_the_vendors_text_names_our_task() -> None:
    said = answer(
        job("FAILED", message="The replica workerpool1-1 ran out of memory and exited with 137.", code=3), TASKS
    )
    assert said.end is not None and said.end.failure is not None
    assert (said.end.reason.value, said.end.failure.task) == ("out_of_memory", "worker-1")


def test_an_error_that_google_gave_the_program_keeps_its_traceback_and_gets_a_fix() -> None:
    message = "chief-0 failed: Forbidden: 403 ACCESS_TOKEN_SCOPE_INSUFFICIENT"
    end = advised(failed(Reason.USER_ERROR, Failure(task="chief-0", message=message, traceback="T")))
    assert end.failure is not None
    assert (end.reason.value, end.failure.traceback) == ("permission", "T")
    assert end.failure.message.startswith(f"{message} ")
    assert "vertex_service_account" in end.failure.message


def test_a_verdict_keeps_the_facts_that_the_vendor_forgets() -> None:
    vendor = job("FAILED", message="Internal error occurred.", started=105.0, ended=120.0)
    data = final(SUCCEEDED, **states.about(vendor))
    assert states.job_of(event("final", 120.0, 0, "supervisor", **data)) == vendor


def test_replicas_have_the_names_of_tasks_whatever_the_pools() -> None:
    names = request.replica_names(["worker-0", "worker-1", "ps-0", "ps-1", "evaluator-0"])
    assert names == {
        "workerpool0-0": "worker-0",
        "workerpool1-0": "worker-1",
        "workerpool2-0": "ps-0",
        "workerpool2-1": "ps-1",
        "workerpool3-0": "evaluator-0",
    }


@pytest.mark.parametrize(
    ("status", "words", "reason", "message", "below"),
    [
        (3, "podlift: This image has no TensorFlow.\nNext: another.", "refused", "This image has no TensorFlow.", ""),
        (3, "python3: not found", "user_error", "The program failed without a record", "python3: not found"),
        # One that was killed has refused nothing.
        (137, "podlift: attempt 2 starts", "killed", "A task was killed by SIGKILL.", "podlift: attempt 2 starts"),
    ],
)
def test_where_no_record_tells_of_an_end_the_log_does(status, words, reason, message, below) -> None:
    said = answer(job("FAILED", message=EXITED.replace("of 3", f"of {status}")), TASKS, last_output=words)
    assert said.end is not None and said.end.failure is not None
    assert (said.end.reason.value, said.end.failure.task, said.knows) == (reason, "worker-1", "exit")
    assert said.end.failure.message.startswith(message)
    assert said.end.failure.traceback == below
