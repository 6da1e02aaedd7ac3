"""When a store is asked again: in time, and never behind it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from support import FakeClock

from sdk.storage.retry import Retries


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
