"""The points of a curve that are drawn."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdk.ui import curves
from sdk.ui.curves import Point


def points(values: list[float | None]) -> list[Point]:
    return [Point(float(step), 0.0, float(step), value, 1) for step, value in enumerate(values)]


@given(st.lists(st.none() | st.floats(-1e6, 1e6), min_size=1, max_size=400), st.integers(4, 60))
def test_a_thinned_curve_keeps_its_ends_its_order_and_its_lowest_and_highest_value(values, most: int) -> None:
    few, whole = curves.thinned(points(values), most), points(values)
    assert len(few) <= most
    assert [point.step for point in few] == sorted({point.step for point in few})
    assert (few[0], few[-1]) == (whole[0], whole[-1])
    known = [value for value in values if value is not None]
    if known:
        drawn = [point.value for point in few if point.value is not None]
        assert (min(drawn), max(drawn)) == (min(known), max(known))


def test_repeated_steps_have_the_values_of_the_later_attempt() -> None:
    records = [{"attempt": 1, "step": step, "time": 100.0 + step, "metrics": {"loss": 1.0}} for step in (1, 2, 3)]
    records += [{"attempt": 2, "step": step, "time": 200.0 + step, "metrics": {"loss": 2.0}} for step in (3, 4)]
    found = curves.curves(records, 100.0)["loss"]
    assert [(point.step, point.value) for point in found] == [(1, 1.0), (2, 1.0), (3, 2.0), (4, 2.0)]
    assert found[-1].time == 104.0


@pytest.mark.parametrize(
    ("records", "partial"),
    [
        ([(1, 20, 1), (1, 40, 2), (1, 60, 3), (1, 67, 3), (2, 80, 4), (2, 100, 5)], [67]),
        ([(1, 60, 0), (1, 83, 1)], [83]),
        ([(1, 23, 0), (2, 60, 0), (2, 120, 1)], [23]),
        ([(1, 60, 0), (1, 120, 1), (2, 180, 2)], []),
        ([(1, 60, 0)], []),
    ],
)
def test_the_last_value_of_an_attempt_that_ended_within_an_epoch_is_partial(records, partial: list[int]) -> None:
    names = ("attempt", "step", "epoch")
    reported = [{**dict(zip(names, each, strict=True)), "metrics": {"loss": 1.0}} for each in records]
    found = curves.curves(reported, 0.0)
    assert [point.step for point in found["loss"] if point.partial] == partial
    places = [at for at, (_, step, _) in enumerate(records) if step in partial]
    assert curves.charts({"run": found}).shown[0].series[0].partial == places


def test_values_without_a_number_are_gaps_and_invalid_records_are_drawn_partly() -> None:
    records = [
        {"attempt": 1, "step": 1, "metrics": {"loss": None, "acc": 1}},
        {"attempt": "x", "step": "two", "time": [], "metrics": {"loss": "0.5", "acc": True}},
        {"attempt": 1, "step": 3, "metrics": {"loss": math.nan, "acc": 10**400}},
        {"metrics": "no"},
    ]
    found = curves.curves(records, 0.0)
    assert [point.value for point in found["loss"]] == [None, None, None]
    assert [point.value for point in found["acc"]] == [1.0, None, None]
    assert curves.outline(found["loss"], 100, 10) == []


def test_a_page_of_very_many_metrics_says_how_many_are_not_drawn() -> None:
    many = {f"m{number:04}": points([1.0, 2.0]) for number in range(1000)}
    drawn = curves.charts({"a": many, "b": many})
    assert len(drawn.shown) * 2 <= curves.CURVES
    assert len(drawn.shown) + drawn.left_out == 1000
