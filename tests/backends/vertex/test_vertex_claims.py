"""Who creates a job holds a claim: killed at any step, or raced by others, there is one job, within two minutes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support import FakeClock
from test_vertex_submit import LOST, Service
from test_vertex_submit import creation as of_any

from sdk.backends.vertex.client import VertexRejectedError
from sdk.backends.vertex.job.create_job import (
    CreatedJob,
    JobCreation,
    JobNotCreatedError,
    cancel_strays,
    read_created,
    write_tombstone,
)
from sdk.status import Reason
from sdk.storage.posix_store import PosixStore

RUN, REGION = "r-aaaaaa", "us-central1"
TAKEN_OVER_S = 120.0


class KilledError(BaseException):
    """The process is gone: nothing of it runs after this."""


class Mortal:
    """Passes calls on, and kills the process before or after its call number `at`; 0 for never."""

    def __init__(self, inner: Any, calls: Iterator[int], at: int, *, before: bool) -> None:
        self._inner, self._calls, self._at, self._before = inner, calls, at, before

    def __getattr__(self, name: str) -> Callable[..., Any]:
        call = getattr(self._inner, name)

        def mortal(*args: Any, **more: Any) -> Any:
            number = next(self._calls)
            if number == self._at and self._before:
                raise KilledError
            try:
                return call(*args, **more)
            finally:
                if number == self._at:
                    raise KilledError

        return mortal


def creation(store: Any, service: Any, clock: FakeClock, ages: PosixStore) -> JobCreation:
    return of_any(store, service, clock, number=2, regions=[REGION], ages=ages)


def until_created(store: PosixStore, service: Any, clock: FakeClock) -> CreatedJob:
    """Poll as a client does that waits for the run."""
    for _ in range(100):
        made = creation(store, service, clock, store).attempt()
        if made is not None:
            return made
        clock.sleep(2.0)
    raise AssertionError("nobody has created the job")


def is_taken_over(store: PosixStore, service: Any, clock: FakeClock) -> None:
    killed, made = clock.now(), until_created(store, service, clock)
    assert clock.now() - killed <= TAKEN_OVER_S
    assert [job.name for job in service.jobs] == [made.name]
    assert read_created(store, 2) == made


# The calls of a creation to its store and to the service: read_created, the claim, the request, the record of its name.
STEPS = 4


@pytest.mark.parametrize("late_s", [0.0, 20.0], ids=["list_is_current", "list_is_late"])
@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("step", range(1, STEPS + 1))
def test_a_holder_that_is_killed_at_any_step_leaves_one_job(store, clock, step, before, late_s) -> None:
    service = Service(clock, late_s=late_s, number=2)
    calls = iter(range(1, 1000))
    mortals = [Mortal(each, calls, step, before=before) for each in (store, service)]
    with pytest.raises(KilledError):
        creation(*mortals, clock, store).attempt()
    is_taken_over(store, service, clock)


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("step", range(4))
def test_one_that_takes_over_and_is_killed_too_leaves_one_job(store, clock, step, before) -> None:
    service = Service(clock, number=2)
    with pytest.raises(KilledError):
        creation(store, Mortal(service, iter(range(1, 9)), 1, before=True), clock, store).attempt()
    clock.sleep(61.0)
    calls = iter(range(1, 1000))
    # It reads, tries to claim, looks at the claim and searches six times, by two calls each, the last of which is the first
    # of these steps. Then it takes the claim over, sends the request, and records the name.
    mortals = [Mortal(each, calls, 3 + 6 * 2 + step, before=before) for each in (store, service)]
    with pytest.raises(KilledError):
        creation(*mortals, clock, store).attempt()
    is_taken_over(store, service, clock)


def test_of_many_that_race_one_creates_the_job_and_all_find_it(store, clock) -> None:
    service, asked = Service(clock, number=2), list[CreatedJob | None]()
    # Four others ask while the request of the first one is on its way.
    service.before = lambda: asked.extend(creation(store, service, clock, store).attempt() for _ in range(4))
    made = creation(store, service, clock, store).attempt()
    assert asked == [None] * 4
    assert [creation(store, service, clock, store).attempt() for _ in range(4)] == [made] * 4
    assert len(service.jobs) == 1


def test_a_holder_that_is_slow_keeps_its_claim_while_it_works(store, clock) -> None:
    service, others = Service(clock, LOST, LOST, number=2), list[CreatedJob | None]()

    def wait() -> None:
        clock.sleep(50.0)
        others.append(creation(store, service, clock, store).attempt())

    service.before = wait
    made = creation(store, service, clock, store).ensure()
    assert others == [None, None, None]
    assert [job.name for job in service.jobs] == [made.name]
    assert cancel_strays(service, [REGION], RUN, 2, made) == []  # type: ignore[arg-type]


def test_a_machine_that_was_suspended_with_a_claim_in_its_hand_sends_no_request(store, clock, monkeypatch) -> None:
    service, own, put = Service(clock, number=2), FakeClock(), store.put_new
    # This one stands still meanwhile.
    monkeypatch.setattr(own, "monotonic", lambda: 0.0)

    def suspended(key: str, data: Any) -> Any:
        monkeypatch.setattr(store, "put_new", put)
        found = put(key, data)
        clock.sleep(3600.0)
        own.time = clock.time
        until_created(store, service, clock)
        store.delete("jobs/0002.created.json")  # so that only the claim tells
        return found

    monkeypatch.setattr(store, "put_new", suspended)
    assert creation(store, service, own, store).attempt() is None
    assert len(service.jobs) == 1


def test_a_cancellation_while_the_service_is_busy_is_noticed_before_the_next_request(store, clock) -> None:
    busy = VertexRejectedError("Quota exceeded for quota metric 'a' and limit 'a per minute'", 429)
    service = Service(clock, busy, busy, number=2)
    service.before = lambda: write_tombstone(store, 2)
    with pytest.raises(JobNotCreatedError) as caught:
        creation(store, service, clock, store).attempt()
    assert (caught.value.reason, service.creates) == (Reason.CANCELLED, [REGION])


def test_of_two_jobs_that_lost_requests_have_made_the_older_one_counts(store, clock) -> None:
    service = Service(clock, number=2)
    with pytest.raises(KilledError):
        creation(store, Mortal(service, iter(range(1, 9)), 1, before=True), clock, store).attempt()
    for number, created in ((8, clock.now() + 2.0), (9, clock.now() + 1.0)):
        service.add(number, created)
    clock.sleep(61.0)
    assert until_created(store, service, clock).id == "9"
