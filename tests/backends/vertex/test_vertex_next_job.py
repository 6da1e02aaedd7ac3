"""The step after the end of a job, as a pure function of the records, and the steps of waiting processes."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest
from support import FakeClock

import sdk
from sdk.backends import keeper_main
from sdk.backends.containers import Archives
from sdk.backends.vertex.job import start_run
from sdk.backends.vertex.job.create_job import KEYS, JobNotCreatedError
from sdk.backends.vertex.wait import run_keeper, waiting
from sdk.backends.vertex.wait.keeper import KeeperFacts
from sdk.backends.vertex.wait.resubmit import JobEnd, following
from sdk.backends.vertex.wait.run_keeper import RunKeeper
from sdk.backends.vertex.wait.waiting import Resubmission
from sdk.errors import AccessError, StoreError, UnavailableError
from sdk.hardware import pricing
from sdk.job.plan import Plan
from sdk.records.events import Event
from sdk.records.spending import Spent
from sdk.records.verdicts import AttemptEnd, RunEnd, ServiceAnswer, failed, final, verdict
from sdk.schedules.runs import KeptRuns
from sdk.status import Failure, Reason, State, Status

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


# The place of the next job by the place of the job that ended; None if no job follows.
FOLLOWS: dict[str, dict[int, int | None]] = {
    "stockout": {0: 1, 2: 2},
    "quota": {1: 2, 2: None},
    "preempted": {0: 1, 2: 2},
    "checkpointed": {0: 1, 2: 2},
    "internal": {0: 0},
    "job_lost": {1: 1},
    "out_of_memory": {0: 0},
    **{reason: {0: None} for reason in ("user_error", "timeout", "permission", "cancelled")},
}


@pytest.mark.parametrize("reason", FOLLOWS)
def test_the_reason_says_where_the_next_job_runs(planned, reason) -> None:
    for place, follows in FOLLOWS[reason].items():
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
    # A step from which the next attempt continued is progress.
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


def test_no_next_job_could_exceed_the_limit_on_the_cost_but_on_an_emulator(planned) -> None:
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


# --- A process that waits, without a service: by a clock that is set by hand ------------------------------------------

ACCOUNT = "keeper@my-project.iam.gserviceaccount.com"
ARCHIVES = Archives(runtime="a" * 64, entrypoint="b" * 64)


@pytest.fixture
def plan(write) -> Plan:
    write("train.py", "print(1)")
    target = sdk.Vertex(project="my-project", bucket="my-bucket", image="image", keeper=True, service_account=ACCOUNT)
    return sdk.plan("train.py", backend=target)


class Latest:
    """The second job of a run, which does not exist yet."""

    def __init__(self) -> None:
        self.number, self.location, self.loss, self.is_created = 2, 1, "", False
        self.timeout_s: float | None = 3000.0
        self.intent_s: float | None = None
        self.requested_s = 0.0
        after = {"location": 1, "delay_s": 30.0, "timeout_s": 3000.0}
        data = {"number": 1, "reason": "stockout", "why": "Job 2 follows.", "continues": after}
        self.predecessor = event("final", "supervisor", **data)

    def intent_age_s(self) -> float | None:
        return self.intent_s

    def requested_age_s(self) -> float:
        return self.requested_s

    def continued(self, since: int) -> list[Event]:
        return [self.predecessor] if self.predecessor and since <= 1 else []


@pytest.fixture
def creation(monkeypatch, plan) -> Mock:
    """The creations of jobs: `creation.return_value.attempt` answers."""
    found = Mock()
    monkeypatch.setattr(start_run, "creation", found)
    monkeypatch.setattr(waiting, "read_plan", lambda *_: plan)
    return found


@pytest.fixture
def job() -> Latest:
    return Latest()


@pytest.fixture
def one(plan, store, job, clock) -> Resubmission:
    return Resubmission(plan, store, job, clock, ARCHIVES)  # type: ignore[arg-type]


def test_the_next_job_is_requested_after_its_delay_in_its_place_with_the_time_left(job, one, creation) -> None:
    job.requested_s = 29.0
    assert not one.submit_next()
    job.requested_s = 30.0
    assert one.submit_next()
    (call,) = creation.call_args_list
    assert (call.args[1], call.kwargs) == (2, {"location": 1, "timeout_s": 3000.0})


def test_a_first_job_and_the_one_of_a_resume_have_the_time_limit_of_the_plan(job, one, creation) -> None:
    job.predecessor, job.intent_s = None, 59.0
    assert not one.submit_next()
    job.intent_s = 60.0
    assert one.submit_next()
    assert creation.call_args.kwargs["timeout_s"] is None


def test_a_process_without_permission_stops_submitting_and_leaves_the_run_to_others(store, job, one, creation) -> None:
    creation.return_value.attempt.side_effect = JobNotCreatedError("It may not.", Reason.PERMISSION)
    job.requested_s = 30.0
    one.lease.renew()
    assert not one.submit_next()
    assert (one.gave_up, one.refused) == (True, "It may not.")
    assert not one.submit_next()
    assert creation.call_count == 1
    # Neither a verdict nor a lease that keeps others from one.
    assert list(store.list("")) == []


def test_any_other_rejection_is_the_verdict(store, job, one, creation) -> None:
    creation.return_value.attempt.side_effect = JobNotCreatedError("It is not valid.", Reason.REFUSED)
    job.requested_s = 30.0
    assert one.submit_next()
    assert [stat.key for stat in store.list("")] == [KEYS.event(0, "supervisor-1", 1, "final")]


# --- The keeper -----------------------------------------------------------------------------------------------------


def test_a_keepers_cost_counts_since_the_last_job_and_adds_no_training_time(plan, store, clock) -> None:
    store.put_new(KEYS.keeper(1), [b'{"name": "k", "created": 1000.0}'])
    kept = plan.target.kept_by(plan.job.limits, plan.job.retry)
    rate = pricing.price(kept.rental).at_least / 3600
    used = Spent(seconds=50.0, usd=1.0)
    for since, seconds in ((None, 600.0), (400.0, 600.0), (1500.0, 100.0)):
        found = KeeperFacts(plan, store, clock).added(used, 1, since, 1600.0)
        assert found.seconds == 50.0
        assert found.usd == pytest.approx(1.0 + rate * seconds)
    assert KeeperFacts(plan, store, clock).added(used, 2, None, 1600.0) == used, "a resume has another keeper"


class Watched:
    """A run that a keeper waits for. Each look takes the next entry of `looks`: an error is raised, "" does nothing."""

    def __init__(self, *looks: Any, supervised: bool = True) -> None:
        self.looks, self.supervised, self.refused, self.count = list(looks), lambda: supervised, "", 0

    @contextmanager
    def attending(self) -> Iterator[Callable[[], None]]:
        yield self._look

    def _look(self) -> None:
        self.count += 1
        assert self.count < 10_000, "the keeper's time was over long ago"
        found = self.looks.pop(0) if self.looks else ""
        if isinstance(found, Exception):
            raise found
        self.refused = found


@pytest.mark.parametrize("waiter", ["a client", "the keeper of a run", "the keeper of a schedule"])
def test_every_process_that_waits_submits_the_next_job_by_the_same_call(plan, clock, monkeypatch, waiter) -> None:
    run: Any = Watched()
    ended = Status(state=State.SUCCEEDED, reason=Reason.DONE)
    monkeypatch.setattr(run_keeper, "has_ended", lambda _: True)
    monkeypatch.setattr(sdk.Run, "status", lambda _: ended)
    client = sdk.Run(plan, clock)
    monkeypatch.setattr(client, "_handle", run)
    kept = KeptRuns(clock)
    monkeypatch.setattr(kept, "_run", lambda _: client)
    waits: dict[str, Callable[[], object]] = {
        "a client": lambda: list(client.following()),
        "the keeper of a run": RunKeeper(run, plan, Mock()).step,
        "the keeper of a schedule": lambda: kept.status(plan.url),
    }
    waits[waiter]()
    assert run.count == 1


def keep(run: Any, plan: Plan, clock: FakeClock, remarks: Any = None, keep_for_s: float = 3600.0) -> None:
    keeper_main.keep(RunKeeper(run, plan, remarks or Mock()), keep_for_s, clock)


def test_a_keeper_ends_within_seconds_of_its_run_and_at_its_time_limit_at_the_latest(plan, clock, monkeypatch) -> None:
    begun = clock.now()
    monkeypatch.setattr(run_keeper, "has_ended", lambda _: clock.now() >= begun + 100.0)
    keep(Watched(), plan, clock)
    assert 100.0 <= clock.now() - begun <= 160.0
    monkeypatch.setattr(run_keeper, "has_ended", lambda _: False)
    begun = clock.now()
    keep(Watched(), plan, clock, keep_for_s=500.0)
    assert clock.now() - begun == pytest.approx(500.0, abs=10.0)
    # No process can end this run.
    lost = Watched(supervised=False)
    keep(lost, plan, clock)
    assert lost.count == 1


def test_a_keeper_outlives_an_outage_and_nothing_that_waiting_does_not_mend(plan, clock, monkeypatch) -> None:
    monkeypatch.setattr(run_keeper, "has_ended", lambda _: True)
    run = Watched(UnavailableError("503"), StoreError("The bucket does not answer."), "")
    keep(run, plan, clock)
    assert run.count == 3
    with pytest.raises(AccessError):
        keep(Watched(AccessError("403")), plan, clock)


def test_a_refused_request_of_a_keeper_is_a_finding_of_the_run_once(plan, store, clock, monkeypatch) -> None:
    monkeypatch.setattr(run_keeper, "GcsStore", lambda *_, **__: store)
    run, remarks = Watched("", "It may not.", "It may not."), run_keeper.Remarks(plan, 3, clock)
    monkeypatch.setattr(run_keeper, "has_ended", lambda _: run.count == 3)
    keep(run, plan, clock, remarks)
    (found,) = store.list("events/")
    assert found.key == KEYS.event(0, "keeper-2", 2, "finding")
    assert b"The keeper cannot submit the next job: It may not. A process that waits" in bytes(store.get(found.key))
