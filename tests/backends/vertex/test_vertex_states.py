"""The state of a job at Vertex AI, its log and the run's records make one status, and one history."""

import dataclasses
from typing import Any

import pytest
from google.cloud.aiplatform_v1 import JobState

from sdk import Reason, State, Status
from sdk.backends.vertex.job import history, request, states
from sdk.backends.vertex.job.logs import LogEntry
from sdk.backends.vertex.job.states import VendorJob, advised, answer, merge
from sdk.records.events import Event
from sdk.records.timeline import NOW, Moment
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
    names = ("SUCCEEDED", "FAILED", "CANCELLED", "EXPIRED", "PARTIALLY_SUCCEEDED")
    assert ended == {f"JOB_STATE_{name}" for name in names}


@pytest.mark.parametrize(
    ("before", "vendor", "after"),
    [
        # Before the first record, the vendor names the reason of the wait.
        ("PENDING submitted", "QUEUED", "PENDING queued"),
        ("PENDING submitted", "PENDING", "PENDING provisioning"),
        ("PENDING submitted", "RUNNING", "PENDING preparing"),
        ("PENDING submitted", "PAUSED", "PENDING queued"),
        ("PENDING submitted", "CANCELLING", "RUNNING stopping"),
        # Then the records know more, but for another machine that is waited for.
        ("RUNNING training", "RUNNING", "RUNNING training"),
        ("RUNNING training", "PENDING", "RUNNING restarting"),
        ("RUNNING training", "HIBERNATING", "RUNNING training"),
        ("FAILED user_error", "SUCCEEDED", "FAILED user_error"),
    ],
)
def test_the_vendors_state_is_told_and_names_the_reason_of_a_wait(before, vendor, after) -> None:
    told = merge(status(*before.split()), job(vendor))
    assert (f"{told.state.value} {told.reason.value}", told.vendor) == (after, f"JOB_STATE_{vendor}")
    assert told.console.startswith("https://console.cloud.google.com/")
    assert told.console.endswith("us-central1/training/77?project=p")


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
    assert f"{said.end.state.value} {said.end.reason.value} {said.knows}" == expected


def test_an_error_that_google_gave_the_program_keeps_its_traceback_and_gets_a_fix() -> None:
    message = "chief-0 failed: Forbidden: 403 ACCESS_TOKEN_SCOPE_INSUFFICIENT"
    end = advised(failed(Reason.USER_ERROR, Failure(task="chief-0", message=message, traceback="T")))
    assert (end.reason.value, end.failure.traceback) == ("permission", "T")
    assert end.failure.message.startswith(f"{message} ")
    assert "vertex_service_account" in end.failure.message


def test_a_verdict_keeps_the_facts_that_the_vendor_forgets() -> None:
    vendor = job("FAILED", message="Internal error occurred.", started=105.0, ended=120.0)
    data = final(SUCCEEDED, **states.about(vendor))
    assert states.job_of(event("final", 120.0, 0, "supervisor", **data)) == vendor


def test_replicas_have_the_names_of_tasks_whatever_the_pools() -> None:
    tasks = ["worker-0", "worker-1", "ps-0", "ps-1", "evaluator-0"]
    replicas = [f"workerpool{pool}" for pool in ("0-0", "1-0", "2-0", "2-1", "3-0")]
    assert request.replica_names(tasks) == dict(zip(replicas, tasks, strict=True))


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
    assert (said.end.reason.value, said.end.failure.task, said.knows) == (reason, "worker-1", "exit")
    assert said.end.failure.message.startswith(message)
    assert said.end.failure.traceback == below


def log(*texts: str) -> list[LogEntry]:
    return [LogEntry(id=str(at), time=101.0 + at, replica="service", text=text) for at, text in enumerate(texts)]


def told(vendor: VendorJob | None, *texts: str, events: tuple[Event, ...] = (), notes: tuple = ()) -> list[Moment]:
    return history.moments(events, vendor, notes, log(*texts), provisioning="standard", now=160.0)


def texts(found: list[Moment]) -> list[str]:
    return [moment.text for moment in found]


def test_without_its_log_a_job_has_the_three_times_that_google_keeps() -> None:
    found = told(job("FAILED", started=110.0, ended=150.0, message="Internal error occurred for the current attempt"))
    assert [(moment.time, moment.text) for moment in found] == [
        (100.0, "created job 77 in us-central1"),
        (110.0, "the job runs"),
        (150.0, "the job ended: FAILED"),
    ]
    assert found[-1].causes == ("Internal error occurred for the current attempt",)


def test_a_job_is_told_once_although_its_verdict_holds_it_too() -> None:
    data = {"job": NAME, "vendor": "JOB_STATE_FAILED", "times": {"created": 100.0, "started": 110.0}, "message": ""}
    end = event("final", 150.0, 0, "supervisor", **data)
    found = told(job("FAILED", started=110.0, ended=150.0), "Job is running.", events=(end,))
    assert texts(found) == ["created job 77 in us-central1", "the job runs", "the job ended: FAILED"]


def test_its_log_tells_the_rest_and_repetitions_are_counted_truly() -> None:
    usual = ("Waiting for job to be provisioned.", "Vertex AI is setting up this job.")
    found = told(job("FAILED", ended=150.0, message=STOCKOUT), *usual, STOCKOUT, STOCKOUT, "Job failed.", STOCKOUT)
    assert texts(found)[1:-1] == [f"{STOCKOUT} (2 times)"]
    once = told(job("FAILED", ended=150.0, message=STOCKOUT), STOCKOUT, "Job failed.", STOCKOUT)
    assert texts(once)[1:-1] == [STOCKOUT], "one retry was one"


def test_a_queued_job_waits_for_quota_that_is_in_use_and_the_fix_is_named() -> None:
    now = told(job("QUEUED"))[-1]
    assert (now.time, now.text) == (NOW, "the job is QUEUED, 1 min after its creation")
    for words in ("use the quota", "another region", "iam-admin/quotas"):
        assert words in now.causes[0]


def test_a_job_that_finds_no_machine_says_so_while_it_waits() -> None:
    now = told(job("PENDING"), "Waiting for job to be provisioned.", STOCKOUT)[-1]
    assert now.time == NOW
    assert now.causes[0].startswith("stockout: No such machine was available")
    quota = "The following quota metrics exceed quota limits: aiplatform.googleapis.com/x"
    later = told(job("PENDING"), STOCKOUT, quota)[-1]
    assert [cause.partition(":")[0] for cause in later.causes] == ["quota"], "the last reason that was reported"
    silent = told(job("PENDING"), "Waiting for job to be provisioned.")
    assert texts(silent)[1] == "Waiting for job to be provisioned.", "since when it waits"
    assert silent[-1].causes == ()


def test_earlier_jobs_and_faults_before_a_job_are_part_of_the_history() -> None:
    earlier = {"job": NAME.replace("77", "76"), "vendor": "JOB_STATE_FAILED", "message": ""}
    times, notes = {"created": 50.0, "started": None}, [{"time": 69.0, "text": "rejected"}]
    finals = (
        event("final", 60.0, 0, "supervisor", times=times, **earlier),
        event("final", 70.0, 0, "supervisor-1", job="", vendor="", notes=notes),
    )
    found = told(job("RUNNING"), events=finals, notes=({"time": 99.0, "text": "lost"},))
    jobs = ["created job 76 in us-central1", "the job ended: FAILED", "created job 77 in us-central1"]
    in_order = sorted(found, key=lambda moment: moment.time or 0.0)
    assert texts(in_order) == [*jobs[:2], "rejected", "lost", jobs[2]]
