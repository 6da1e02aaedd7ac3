"""What Vertex AI did with a run's jobs, as far as its jobs, its log and the records of clients tell."""

from __future__ import annotations

from sdk.backends.vertex.job import history
from sdk.backends.vertex.job.logs import LogEntry
from sdk.backends.vertex.job.states import VendorJob
from sdk.records.events import Event
from sdk.records.timeline import NOW, Moment

NAME = "projects/p/locations/us-central1/customJobs/77"
STOCKOUT = "Resources are insufficient in region: us-central1. Try a different region or use a different accelerator."


def job(state: str, **more: object) -> VendorJob:
    return VendorJob(name=NAME, state=f"JOB_STATE_{state}", created=100.0, **more)  # type: ignore[arg-type]


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
    final = Event(attempt=0, source="supervisor", sequence=1, kind="final", time=150.0, data=data)
    found = told(job("FAILED", started=110.0, ended=150.0), "Job is running.", events=(final,))
    assert texts(found) == ["created job 77 in us-central1", "the job runs", "the job ended: FAILED"]


def test_its_log_tells_the_rest_and_repetitions_are_counted_truly() -> None:
    found = told(
        job("FAILED", ended=150.0, message=STOCKOUT),
        "Waiting for job to be provisioned.",
        "Vertex AI is setting up this job.",
        STOCKOUT,
        STOCKOUT,
        "Job failed.",
        STOCKOUT,
    )
    assert texts(found)[1:-1] == [f"{STOCKOUT} (2 times)"]
    once = told(job("FAILED", ended=150.0, message=STOCKOUT), STOCKOUT, "Job failed.", STOCKOUT)
    assert texts(once)[1:-1] == [STOCKOUT], "one retry was one"


def test_a_queued_job_waits_for_quota_that_is_in_use_and_the_fix_is_named() -> None:
    now = told(job("QUEUED"))[-1]
    assert (now.time, now.text) == (NOW, "the job is QUEUED, 1 min after its creation")
    assert "use the quota" in now.causes[0]
    assert "another region" in now.causes[0]
    assert "iam-admin/quotas" in now.causes[0]


def test_a_job_that_finds_no_machine_says_so_while_it_waits() -> None:
    now = told(job("PENDING"), "Waiting for job to be provisioned.", STOCKOUT)[-1]
    assert now.time == NOW
    assert now.causes[0].startswith("stockout: No such machine was available")
    later = told(
        job("PENDING"), STOCKOUT, "The following quota metrics exceed quota limits: aiplatform.googleapis.com/x"
    )[-1]
    assert [cause.partition(":")[0] for cause in later.causes] == ["quota"], "the last reason that was reported"
    silent = told(job("PENDING"), "Waiting for job to be provisioned.")
    assert texts(silent)[1] == "Waiting for job to be provisioned.", "since when it waits"
    assert silent[-1].causes == ()


def test_earlier_jobs_and_faults_before_a_job_are_part_of_the_history() -> None:
    earlier = {
        "job": NAME.replace("77", "76"),
        "vendor": "JOB_STATE_FAILED",
        "times": {"created": 50.0, "started": None},
        "message": "",
    }
    finals = (
        Event(attempt=0, source="supervisor", sequence=1, kind="final", time=60.0, data=earlier),
        Event(
            attempt=0,
            source="supervisor-1",
            sequence=1,
            kind="final",
            time=70.0,
            data={"job": "", "vendor": "", "notes": [{"time": 69.0, "text": "rejected"}]},
        ),
    )
    found = told(job("RUNNING"), events=finals, notes=({"time": 99.0, "text": "lost"},))
    assert texts(sorted(found, key=lambda moment: moment.time or 0.0)) == [
        "created job 76 in us-central1",
        "the job ended: FAILED",
        "rejected",
        "lost",
        "created job 77 in us-central1",
    ]
