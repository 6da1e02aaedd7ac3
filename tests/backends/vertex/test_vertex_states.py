"""What Vertex AI says of a job and what the run's records say make one status."""

import dataclasses
from typing import Any

import pytest
from google.cloud.aiplatform_v1 import JobState

from sdk import Reason, State, Status
from sdk.backends.vertex import request, states
from sdk.backends.vertex.states import EndedJob, VendorJob, merge, state_name, verdict
from sdk.records.events import Event

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
def test_a_state_that_is_not_known_is_kept_and_changes_nothing(value: object, kept: str) -> None:
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
def test_before_the_first_record_the_vendor_says_what_is_waited_for(vendor: str, state: str, reason: str) -> None:
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


FAILED = event("failed", 20.0, type="KeyError", message="'column'", traceback='Traceback\n  File "t.py", line 1\n')
ECHO = event("failed", 21.0, source="worker-0", type="UnavailableError", message="Socket closed", traceback="")


def test_the_root_cause_is_the_tasks_own_and_not_what_the_vendor_says_of_it() -> None:
    vendor = job("FAILED", message="The replica workerpool0-0 exited with a non-zero status of 1.", code=3)
    found = verdict(EndedJob(events=[event("attempt_started", 10.0), ECHO, FAILED], job=vendor, tasks=TASKS))
    assert (found["state"], found["reason"]) == ("FAILED", "user_error")
    assert found["failure"]["task"] == "chief-0"
    assert "KeyError: 'column'" in found["failure"]["message"]
    assert found["failure"]["traceback"].startswith("Traceback")


def test_the_verdict_carries_the_reason_that_the_container_found_out() -> None:
    vendor = job("FAILED", message="The replica workerpool1-0 exited with a non-zero status of 137.", code=3)
    killed = event("exited", 20.0, source="agent-1", task="worker-0", code=-9, reason="out_of_memory", step=7)
    found = verdict(EndedJob(events=[event("attempt_started", 10.0), killed], job=vendor, tasks=TASKS))
    assert (found["reason"], found["failure"]["task"]) == ("out_of_memory", "worker-0")
    assert found["failure"]["message"].endswith("the machine or its control group was out of memory.")
    killed.data["reason"] = "killed"
    found = verdict(EndedJob(events=[event("attempt_started", 10.0), killed], job=vendor, tasks=TASKS))
    assert found["reason"] == "killed" and "which this system does not report" in found["failure"]["message"]


def test_the_verdict_carries_which_disk_was_full_if_the_service_ended_the_job_instead_of_a_restart() -> None:
    full = event("failed", 20.0, type="OSError", message="[Errno 28] No space left on device", traceback="T")
    message = "chief-0 failed: OSError: [Errno 28] No space left on device: the file system of /tmp is full."
    failure = {"task": "chief-0", "message": message, "traceback": "T", "log": ""}
    asked = event("restarting", 21.0, source="agent-0", reason="infrastructure", failure=failure, why="", delay_s=0.0)
    vendor = job("FAILED", message=STATUS_134, code=3)
    found = verdict(EndedJob(events=[event("attempt_started", 10.0), full, asked], job=vendor, tasks=TASKS))
    assert (found["reason"], found["failure"]["message"]) == ("infrastructure", message)
    assert found["failure"]["traceback"] == "T"


def test_an_error_that_google_gave_the_program_keeps_its_traceback_and_gets_a_fix() -> None:
    denied = event("failed", 20.0, type="Forbidden", message="403 ACCESS_TOKEN_SCOPE_INSUFFICIENT", traceback="T")
    vendor = job("FAILED", message="The replica workerpool0-0 exited with a non-zero status of 1.", code=3)
    found = verdict(EndedJob(events=[event("attempt_started", 10.0), denied], job=vendor, tasks=TASKS))
    assert (found["reason"], found["failure"]["traceback"]) == ("permission", "T")
    assert found["failure"]["message"].startswith("chief-0 failed: Forbidden: 403 ACCESS_TOKEN_SCOPE_INSUFFICIENT ")
    assert "vertex_service_account" in found["failure"]["message"]


def test_a_verdict_keeps_what_the_vendor_forgets_of_its_job() -> None:
    vendor = job("FAILED", message="Internal error occurred.", started=105.0, ended=120.0)
    data = verdict(EndedJob(events=[], job=vendor, tasks=TASKS))
    final = Event(attempt=0, source="supervisor", sequence=1, kind="final", time=120.0, data=data)
    assert states.job_of(final) == vendor


def test_without_a_record_the_vendors_text_is_the_cause_and_names_our_task() -> None:
    vendor = job("FAILED", message="The replica workerpool1-1 ran out of memory and exited with 137.", code=3)
    found = verdict(EndedJob(events=[], job=vendor, tasks=TASKS))
    assert (found["reason"], found["failure"]["task"]) == ("out_of_memory", "worker-1")


BEGUN, DONE = event("attempt_started", 10.0), event("done", 30.0)
LATER = event("attempt_started", 40.0, attempt=2)
RESUMED = Event(attempt=0, source="client-1", sequence=1, kind="resumed", time=30.0, data={"attempts": 1})
EXIT_75 = event("exited", 20.0, task="chief-0", code=75)
STOCKOUT = "Resources are insufficient in region: us-central1."
STATUS_1, STATUS_134 = (f"The replica workerpool0-0 exited with a non-zero status of {code}." for code in (1, 134))
OVER_LIMIT = "The job was cancelled because it exceeded its timeout of 60 seconds."
SPOT = {"provisioning": "spot"}
RAN_61_S = {"message": "CANCELED", "code": 1, "started": 100.0, "ended": 161.0}


def asked(at: float) -> dict[str, float]:
    return {"cancel_requested_at": at}


@pytest.mark.parametrize(
    ("vendor", "about", "events", "more", "expected"),
    [
        ("SUCCEEDED", {}, [BEGUN, DONE], {}, "SUCCEEDED done"),
        ("SUCCEEDED", {}, [BEGUN], {}, "SUCCEEDED done"),
        ("SUCCEEDED", {}, [BEGUN, DONE], asked(40.0), "SUCCEEDED done"),
        ("SUCCEEDED", {}, [BEGUN, DONE], asked(25.0), "CANCELLED cancelled"),
        ("SUCCEEDED", {}, [BEGUN], asked(25.0), "CANCELLED cancelled"),
        ("PARTIALLY_SUCCEEDED", {}, [BEGUN, DONE], {}, "SUCCEEDED done"),
        ("PARTIALLY_SUCCEEDED", {}, [BEGUN], {}, "FAILED infrastructure"),
        ("CANCELLED", {}, [BEGUN], {}, "CANCELLED cancelled"),
        ("FAILED", {}, [BEGUN], asked(25.0), "CANCELLED cancelled"),
        ("FAILED", {}, [BEGUN], {}, "FAILED infrastructure"),
        ("EXPIRED", {}, [BEGUN], {}, "FAILED stockout"),
        # What only echoes a lost machine yields to what the vendor knows.
        ("FAILED", {"message": STOCKOUT, "code": 8}, [BEGUN, ECHO], {}, "FAILED stockout"),
        # A spot machine that was taken away is a preemption, and one that never came is a stockout.
        (
            "FAILED",
            {"message": STOCKOUT, "started": 105.0},
            [event("attempt_started", 110.0)],
            SPOT,
            "FAILED preempted",
        ),
        ("FAILED", {"message": STOCKOUT}, [], SPOT, "FAILED stockout"),
        ("FAILED", {"message": STOCKOUT, "started": 105.0}, [event("attempt_started", 110.0)], {}, "FAILED stockout"),
        # What fails behind the wish to end is no failure of the run.
        ("FAILED", {"message": STATUS_1, "code": 3}, [BEGUN, FAILED], asked(15.0), "CANCELLED cancelled"),
        ("FAILED", {"message": STATUS_1, "code": 3}, [BEGUN, FAILED], asked(25.0), "FAILED user_error"),
        # A program that wants to be started again, and was not.
        ("FAILED", {"message": STATUS_134, "code": 3}, [BEGUN, EXIT_75], {}, "CHECKPOINTED checkpointed"),
        # A job that was ended at its limit has timed out, whatever the vendor calls it.
        ("CANCELLED", RAN_61_S, [], {"timeout_s": 60.0}, "FAILED timeout"),
        ("CANCELLED", RAN_61_S, [], {"timeout_s": 600.0}, "CANCELLED cancelled"),
        ("CANCELLED", RAN_61_S, [], {"timeout_s": 60.0, **asked(5.0)}, "CANCELLED cancelled"),
        ("CANCELLED", {"message": OVER_LIMIT, "code": 1}, [], {}, "FAILED timeout"),
        # A failure of an earlier attempt, or of before a resume, is not the cause.
        ("FAILED", {"message": "Internal error occurred", "code": 13}, [BEGUN, FAILED, LATER], {}, "FAILED internal"),
        ("FAILED", {"message": "Internal error occurred", "code": 13}, [BEGUN, FAILED, RESUMED], {}, "FAILED internal"),
    ],
)
def test_how_a_job_ended_and_what_the_records_say_decide(vendor, about, events, more, expected) -> None:
    found = verdict(EndedJob(events=events, job=job(vendor, **about), tasks=TASKS, **more))
    assert f"{found['state']} {found['reason']}" == expected


def test_a_task_that_ended_without_a_word_is_named_with_how_it_ended() -> None:
    exits = [
        event("exited", 20.0, source="agent-1", task="worker-0", code=3, echo=False),
        event("exited", 20.5, source="agent-0", task="chief-0", code=1, echo=True),
    ]
    vendor = job("FAILED", message="The replica workerpool1-0 exited with a non-zero status of 3.", code=3)
    found = verdict(EndedJob(events=[event("attempt_started", 10.0), *exits], job=vendor, tasks=TASKS))
    assert (found["reason"], found["failure"]["task"]) == ("user_error", "worker-0")
    assert "exit code 3" in found["failure"]["message"]


def test_the_vendors_words_are_waited_for_unless_a_task_has_said_why() -> None:
    silent = job("FAILED")
    assert not states.is_explained(EndedJob(events=[], job=silent, tasks=TASKS))
    assert states.is_explained(EndedJob(events=[event("attempt_started", 10.0), FAILED], job=silent, tasks=TASKS))
    assert states.is_explained(EndedJob(events=[], job=job("CANCELLED"), tasks=TASKS))


def test_replicas_have_the_names_of_tasks_whatever_the_pools() -> None:
    names = request.replica_names(["worker-0", "worker-1", "ps-0", "ps-1", "evaluator-0"])
    assert names == {
        "workerpool0-0": "worker-0",
        "workerpool1-0": "worker-1",
        "workerpool2-0": "ps-0",
        "workerpool2-1": "ps-1",
        "workerpool3-0": "evaluator-0",
    }


EXITED = 'The replica workerpool1-1 exited with a non-zero status of 3. Termination reason: Error. Its "log".'


@pytest.mark.parametrize(
    ("words", "reason", "message", "below"),
    [
        ("podlift: This image has no TensorFlow.\nNext: another.", "refused", "This image has no TensorFlow.", ""),
        ("python3: not found", "user_error", "The program failed without a record of the cause.", "python3: not found"),
    ],
)
def test_where_no_record_tells_of_an_end_the_log_does(words: str, reason: str, message: str, below: str) -> None:
    ended = EndedJob(events=[], job=job("FAILED", message=EXITED), tasks=TASKS)
    assert states.silent_replica(ended) == "workerpool1-1"
    found = verdict(dataclasses.replace(ended, last_output=words))
    assert (found["reason"], found["failure"]["task"]) == (reason, "worker-1")
    assert found["failure"]["message"].startswith(message)
    assert found["failure"]["traceback"] == below


def test_a_container_that_was_killed_has_refused_nothing_although_its_last_line_is_podlifts_own() -> None:
    killed = job("FAILED", message=EXITED.replace("status of 3", "status of 137"))
    ended = EndedJob(events=[event("attempt_started", 10.0)], job=killed, tasks=TASKS)
    found = verdict(dataclasses.replace(ended, last_output="podlift: attempt 2 starts from the beginning"))
    assert (found["reason"], found["failure"]["task"]) == ("killed", "worker-1")
    assert "SIGKILL" in found["failure"]["message"]


def test_where_a_record_or_the_vendor_tells_why_nobody_reads_the_log() -> None:
    failed = EndedJob(events=[event("attempt_started", 10.0), FAILED], job=job("FAILED", message=EXITED), tasks=TASKS)
    memory = job("FAILED", message="The replica workerpool1-1 ran out of memory.")
    assert states.silent_replica(failed) == ""
    assert states.silent_replica(EndedJob(events=[], job=memory, tasks=TASKS)) == ""
