"""The step after the end of a job, as a pure function of the records: another job, where, and when none does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

import sdk
from sdk.backends.vertex.wait.resubmit import JobEnd, following
from sdk.job.plan import Plan
from sdk.records.events import Event
from sdk.records.verdicts import AttemptEnd, RunEnd, ServiceAnswer, failed, final, verdict
from sdk.status import Failure, Reason, State

PLACES = ("us-central1:spot", "us-central1:standard", "europe-west4:standard")


@pytest.fixture
def planned(write, monkeypatch) -> Callable[..., Plan]:
    write("train.py", "print(1)")
    for name in ("PODLIFT_RETRY_INFRASTRUCTURE", "PODLIFT_RETRY_PREEMPTIONS"):
        monkeypatch.delenv(name)

    def plan(retry: sdk.Retry | None = None, locations: Sequence[str] = PLACES, **limits: Any) -> Plan:
        target = sdk.Vertex(project="my-project", bucket="my-bucket", image="image", regions=tuple(locations))
        job = sdk.Job("train.py", retry=retry or sdk.Retry(), limits=sdk.Limits(**limits))
        return sdk.plan(job, backend=target)

    return plan


def event(kind: str, source: str = "chief-0", attempt: int = 0, time: float = 1.0, **data: object) -> Event:
    return Event(attempt=attempt, source=source, sequence=1, kind=kind, time=time, data=data)


def ended(reason: str, seconds: float = 60.0, usd: float | None = None) -> dict[str, object]:
    spent = {"seconds": seconds, "usd": usd, "at_least": False}
    failure = {"task": "", "message": "It ended.", "traceback": "", "log": ""}
    return {"state": "FAILED", "reason": reason, "failure": failure, "vendor": "JOB_STATE_FAILED", "spent": spent}


def continued(number: int, reason: str, location: int = 0, **more: Any) -> Event:
    source = f"supervisor-{number - 1}" if number > 1 else "supervisor"
    after = {"location": location, "where": "there", "delay_s": 0.0, "timeout_s": None}
    return event("final", source, **ended(reason, **more), number=number, attempts=number, continues=after, why="")


def after(plan: Plan, data: dict[str, Any], events: Sequence[Event] = (), **more: int) -> dict[str, Any]:
    number = 1 + sum("continues" in each.data for each in events)
    about = {"number": number, "first": 1, "location": 0, **more}
    end = failed(Reason(data["reason"]), Failure(**data["failure"]))
    end, more_data = following(JobEnd(plan=plan, end=end, booked=data, events=events, **about))
    return {**final(end), **more_data}


def message_of(data: dict[str, Any]) -> str:
    return str(data["failure"]["message"])


@pytest.mark.parametrize(
    ("reason", "place", "follows"),
    [
        ("stockout", 0, 1),
        ("quota", 1, 2),
        ("preempted", 0, 1),
        ("preempted", 2, 2),
        ("checkpointed", 0, 1),
        ("checkpointed", 2, 2),
        ("stockout", 2, 2),
        ("quota", 2, None),
        ("internal", 0, 0),
        ("job_lost", 1, 1),
        ("out_of_memory", 0, 0),
        ("user_error", 0, None),
        ("timeout", 0, None),
        ("permission", 0, None),
        ("cancelled", 0, None),
    ],
)
def test_the_reason_says_where_the_next_job_runs(planned, reason, place, follows) -> None:
    found = after(planned(), ended(reason), location=place)
    assert found.get("continues", {}).get("location") == follows


@pytest.mark.parametrize("knows", ["cause", "exit"])
def test_after_a_save_and_a_lack_of_machines_the_next_job_runs_in_the_next_place(planned, knows) -> None:
    plan = planned()
    saved = [
        event("attempt_started", attempt=1, job=1),
        event("exited", "agent", attempt=1, task="chief-0", code=75, reason="checkpointed", step=5, collateral=False),
    ]
    agreed = AttemptEnd(state=State.FAILED, reason=Reason.CHECKPOINTED, task="chief-0", restart=True, step=5)
    stockout = failed(Reason.STOCKOUT, Failure(task="", message="Resources are insufficient."))
    said = ServiceAnswer(job="ended", end=stockout, time=60.0, knows=knows)
    end = verdict(RunEnd(events=saved, tasks=plan.tasks, service=said, agreed=agreed, kept=("collected",)))
    ended_job = JobEnd(plan=plan, number=1, first=1, location=0, end=end, booked=ended(end.reason.value), events=saved)
    _, more = following(ended_job)
    assert more["continues"]["location"] == 1  # type: ignore[index]


def test_the_record_says_all_that_another_process_needs(planned) -> None:
    attempts = [event("attempt_started", attempt=4, job=1)]
    found = after(planned(timeout_s=3600.0), ended("preempted", seconds=600.0), attempts)
    assert found["continues"] == {"location": 1, "where": "us-central1:standard", "delay_s": 0.0, "timeout_s": 3000.0}
    assert (found["number"], found["attempts"]) == (1, 4)
    assert "Job 2 follows in us-central1:standard. Spent so far: 10 min." in found["why"]


def test_the_budgets_hold_for_attempts_and_jobs_together(planned) -> None:
    plan = planned(sdk.Retry(infrastructure=2, preemptions=0))
    attempts = [
        event("attempt_started", attempt=1, job=1),
        event("exited", attempt=1, code=-9, reason="killed", step=5),
        event("attempt_started", attempt=2, job=1),
    ]
    # The last attempt of a job and the end of the job are one failure.
    assert "continues" in after(plan, ended("internal"), attempts)
    later = [*attempts, continued(1, "internal"), event("attempt_started", attempt=3, job=2)]
    found = after(plan, ended("internal"), later)
    assert "continues" not in found
    assert "2 of 2 restarts after an infrastructure failure are used up" in message_of(found)
    # A resume by a user begins a new history.
    assert "continues" in after(plan, ended("internal"), later, number=2, first=2)


def test_no_job_follows_one_with_a_crash_loop_of_one_task(planned) -> None:
    loop = [event("task_restarting", time=at, attempt=1, task="worker-0", reason="killed", step=5) for at in (2.0, 3.0)]
    ends = [
        event("attempt_started", attempt=1, job=1),
        *loop,
        event("exited", attempt=1, time=4.0, code=0, reason="done", step=7),
        event("attempt_ended", "agent-1", attempt=1, time=4.0, reason="killed", not_restarted="worker-0", step=5),
    ]
    found = after(planned(sdk.Retry(infrastructure=9)), ended("killed"), ends)
    assert "continues" not in found
    assert "worker-0 ended 3 times at step 5" in message_of(found)


def test_jobs_that_get_no_machine_and_other_places_are_no_crash_loop(planned) -> None:
    several = sdk.Retry(infrastructure=9)
    without = [continued(number, "stockout", location=2) for number in (1, 2, 3)]
    assert "continues" in after(planned(several), ended("stockout"), without, location=2)
    started = [event("attempt_started", attempt=number, job=number) for number in (1, 2, 3)]
    same = [*started, continued(1, "internal"), continued(2, "internal")]
    found = after(planned(several), ended("internal"), same)
    assert "3 consecutive attempts ended before reporting a step" in message_of(found)
    assert "continues" in after(planned(several), ended("preempted"), same)


def test_attempts_without_progress_are_a_crash_loop_unless_the_machines_change(planned) -> None:
    events = [event("attempt_started", attempt=number, job=1) for number in (1, 2, 3)]
    # The first one was lost without a record: the second one tells how far it came.
    events += [event("continued", attempt=2, step=10), event("saved", attempt=3, step=10)]
    several = sdk.Retry(infrastructure=9)
    found = after(planned(several), ended("internal"), events)
    assert "3 consecutive attempts ended at step 10" in message_of(found)
    assert "continues" in after(planned(several), ended("preempted"), events)
    assert "continues" not in after(planned(several), ended("preempted"), events, location=2)


def test_a_step_that_the_next_attempt_continued_from_is_progress(planned) -> None:
    events = [event("attempt_started", attempt=number, job=1) for number in range(1, 8)]
    events += [event("continued", attempt=number, step=10 * number) for number in range(2, 8)]
    assert "continues" in after(planned(locations=PLACES[:1]), ended("preempted"), events)


def test_the_time_limit_covers_all_jobs_since_the_last_resume(planned) -> None:
    plan, half = planned(timeout_s=3600.0), ended("internal", seconds=1800.0)
    earlier = [continued(1, "internal", seconds=1800.0)]
    found = after(plan, half, earlier)
    assert (found["state"], found["reason"]) == ("FAILED", "timeout")
    assert "It ended. The time limit of the run is used up: its jobs ran for 1 h" in message_of(found)
    assert after(plan, half, earlier, number=2, first=2)["continues"]["timeout_s"] == 1800.0


@pytest.mark.parametrize(("ran_s", "left_s"), [(3540.0, 60.0), (3541.0, None), (3599.5, None)])
def test_a_next_job_that_would_end_before_it_has_trained_is_not_made(planned, ran_s, left_s) -> None:
    found = after(planned(timeout_s=3600.0), ended("internal", seconds=ran_s))
    assert found.get("continues", {}).get("timeout_s") == left_s
    if left_s is None:
        assert (found["state"], found["reason"]) == ("FAILED", "timeout")
        assert "used up but for" in message_of(found) and "too little for another job" in message_of(found)


def test_a_next_job_that_could_exceed_the_limit_on_the_cost_is_not_made_but_on_an_emulator(planned) -> None:
    # 0.22 USD an hour on demand, so that the cap of a next job of 9 hours is 1.97 USD.
    plan = planned(locations=("us-central1:standard",), timeout_s=36000.0, max_cost_usd=3.0)
    hour = ended("internal", seconds=3600.0, usd=0.22)
    assert after(plan, hour)["continues"]["timeout_s"] == 32400.0
    spent = [continued(1, "internal", seconds=0.0, usd=2.0)]
    found = after(plan, hour, spent)
    assert (found["state"], found["reason"]) == ("FAILED", "budget")
    assert "The run has spent 2.22 USD" in message_of(found)
    assert message_of(found).endswith(" The job itself ended with internal.")
    assert "continues" in after(replace(plan, emulator="127.0.0.1:1"), hour, spent), "nothing is billed"
