"""Successive halving as a function of curves: who pauses at a rung, and who goes on."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdk.sweeps import halving

CURVES = st.lists(st.lists(st.integers(0, 99), max_size=10).map(lambda values: dict(enumerate(values, 1))), max_size=12)


@pytest.mark.parametrize(
    ("epochs", "passed", "rung"),
    [
        (0, 0, None),
        (1, 0, 0),
        (2, 0, 0),
        (3, 0, 1),
        (2, 1, None),
        (3, 1, 1),
        (8, 2, None),
        (9, 2, 2),
        (9, halving.LAST, None),
    ],
)
def test_a_trial_is_judged_at_the_highest_rung_that_it_has_reached(epochs: int, passed: int, rung: int | None) -> None:
    assert halving.rung(epochs, passed) == rung


@given(CURVES, st.integers(0, 2), st.sampled_from(["max", "min"]))
def test_a_third_of_the_trials_at_a_rung_goes_on_and_they_are_the_best(curves, rung: int, mode: str) -> None:
    values = [halving.at_rung(curve, rung, mode) for curve in curves]
    passing = [value for value, curve in zip(values, curves, strict=True) if halving.passes(curve, rung, curves, mode)]
    others = [value for value in values if value is not None and value not in passing]
    reached = [value for value in values if value is not None]
    # Equal values go on together.
    assert len(set(passing)) <= len(reached) // 3
    sign = 1 if mode == "max" else -1
    assert all(sign * one > sign * other for one in passing for other in others)


def test_the_value_at_a_rung_comes_from_the_epochs_until_then() -> None:
    assert halving.at_rung({1: 5.0, 2: 7.0, 3: 6.0, 4: 9.0}, 1, "max") == 7.0
    assert halving.at_rung({1: 5.0, 2: 7.0}, 1, "max") is None
