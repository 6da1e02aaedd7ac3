"""The steps of a process that waits, and of a keeper in its loop, without a service: by a clock that is set by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import Mock

import pytest
from support import FakeClock, heard

import sdk
from sdk.backends import keeper_main
from sdk.backends.containers import Archives
from sdk.backends.vertex.job import start_run
from sdk.backends.vertex.job.create_job import KEYS, JobNotCreatedError
from sdk.backends.vertex.wait import run_keeper, waiting
from sdk.backends.vertex.wait.keeper import KeeperFacts
from sdk.backends.vertex.wait.run_keeper import RunKeeper
from sdk.backends.vertex.wait.waiting import Resubmission
from sdk.errors import AccessError, StoreError, UnavailableError
from sdk.hardware import pricing
from sdk.job.plan import Plan
from sdk.records.events import Event
from sdk.records.spending import Spent
from sdk.schedules.runs import KeptRuns
from sdk.status import Reason, State, Status

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
        self.predecessor = Event(attempt=0, source="supervisor", sequence=1, kind="final", time=1.0, data=data)

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


def test_a_job_that_ended_is_reported_once(plan, store, clock, job) -> None:
    said, job.number = heard("backends"), 1
    one = Resubmission(plan, store, job, clock, ARCHIVES)  # type: ignore[arg-type]
    for _ in range(3):
        one.tell()
    assert [text for text in said if text.startswith("Job 1 ended")] == ["Job 1 ended (stockout). Job 2 follows."]


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
    assert KeeperFacts(plan, store, clock).added(used, 2, None, 1600.0) == used, "a resume has a keeper of its own"


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
    # A run that no process can end any more.
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
