"""A wait outlives a service that does not answer, says so after a while, and asks less and less often."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support import FakeClock, heard

from sdk.errors import AccessError, StoreUnavailableError
from sdk.storage.retry import Outage

DOWN = StoreUnavailableError("The bucket does not answer. Next: check the network")


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
