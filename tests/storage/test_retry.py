"""A store is asked again in time; a wait outlives a service that does not answer, and says so after a while."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import FakeClock, heard

from sdk.errors import AccessError, StoreUnavailableError
from sdk.storage.retry import Outage, Retries

DOWN = StoreUnavailableError("The bucket does not answer. Next: check the network")


@given(st.floats(0, 100), st.floats(0.01, 5), st.one_of(st.none(), st.floats(0, 200)))
def test_no_try_begins_behind_the_end(total_s: float, wait_s: float, asked_s: float | None) -> None:
    clock = FakeClock(0.0)
    tries = Retries(clock, wait_s, limit=lambda: total_s)
    while tries.again(asked_s):
        assert clock.time < total_s
        clock.time += 0.01
    assert clock.time <= total_s
    assert tries.count >= 1


def test_a_store_is_asked_as_long_as_there_is_time_and_ever_more_seldom() -> None:
    clock = FakeClock(0.0)
    tries = Retries(clock, 0.25, limit=lambda: 600.0)
    while tries.again(None):
        pass
    assert clock.time > 599
    assert 15 < tries.count < 200


def test_a_server_that_asks_for_a_wait_is_waited_for_if_there_is_time() -> None:
    clock = FakeClock(0.0)
    tries = Retries(clock, 0.1, limit=lambda: 10.0)
    assert tries.again(4.0)
    assert clock.time >= 4
    assert not tries.again(60.0)
    assert clock.time < 5


def test_a_sleeper_sees_that_it_has_to_hurry() -> None:
    until = [1000.0]

    class Hurried(FakeClock):
        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            until[0] = 5.0

    clock = Hurried(0.0)
    assert not Retries(clock, 0.1, limit=lambda: until[0]).again(100.0)
    assert clock.time < 1


def test_requests_that_failed_together_retry_apart_and_within_the_steps_longest_wait() -> None:
    waits = []
    for _ in range(50):
        clock = FakeClock(0.0)
        tries = Retries(clock, 1.0, limit=lambda: 600.0)
        assert tries.again(None)
        waits.append(clock.time)
    assert max(waits) <= 1.0
    assert len(set(waits)) == len(waits)
    # Spread over all of the time: the first and the last part are among them.
    assert min(waits) < 0.35
    assert max(waits) > 0.65


def fails(clock: FakeClock, takes_s: float = 0.0) -> Callable[[], str]:
    def call() -> str:
        clock.sleep(takes_s)
        raise DOWN

    return call


def outage(clock: FakeClock) -> Outage:
    return Outage(clock, "The run r cannot be read", "It is not affected.")


def test_an_answer_is_returned_and_an_outage_is_none() -> None:
    clock = FakeClock()
    found = outage(clock)
    assert found.outlive(lambda: "answer") == "answer"
    assert found.outlive(fails(clock)) is None
    assert (found.failures, found.error) == (1, DOWN)
    assert found.outlive(lambda: "answer") == "answer"
    assert (found.failures, found.error, found.pause_s) == (0, None, 0.0)


def test_an_error_that_no_repetition_mends_is_raised() -> None:
    def denied() -> None:
        raise AccessError("403")

    with pytest.raises(AccessError):
        outage(FakeClock()).outlive(denied)


def test_a_short_outage_is_not_mentioned_and_a_long_one_twice_and_its_end() -> None:
    clock, lines = FakeClock(), heard("backends")
    found = outage(clock)
    found.outlive(fails(clock, 20))
    found.outlive(lambda: True)
    assert lines == []
    for _ in range(45):
        found.outlive(fails(clock, 20))
    first, second = lines
    assert first == (
        "The run r cannot be read for 40 s now: The bucket does not answer. Next: check the network. It is not affected."
    )
    assert second.startswith("The run r cannot be read for 10 min 40 s now")
    found.outlive(lambda: True)
    assert lines[2:] == ["The service answers again, after 15 min."]


def test_the_call_that_was_repeated_for_a_minute_is_part_of_the_outage() -> None:
    clock, lines = FakeClock(), heard("backends")
    outage(clock).outlive(fails(clock, 60))
    assert len(lines) == 1


def test_pauses_grow_to_half_a_minute() -> None:
    clock = FakeClock()
    found = outage(clock)
    pauses = []
    for _ in range(7):
        found.outlive(fails(clock))
        pauses.append(found.pause_s)
        assert not found.due
        clock.sleep(found.pause_s)
        assert found.due
    assert pauses == [1, 2, 4, 8, 16, 30, 30]
