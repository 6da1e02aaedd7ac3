"""The list of runs that the page shows, searched, sorted, in pages, and the points of a curve that are drawn."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from page_runs import HOSTILE, Elements

from sdk.status import Reason, State, Status
from sdk.ui import curves, listing, pages
from sdk.ui.curves import Point, polylines
from sdk.ui.rows import RunInfo, row

NOW = 10_000.0


def info(
    name: str, state: State | None = State.SUCCEEDED, created: float = 0.0, saved: float | None = None, **about: Any
) -> RunInfo:
    status = state and Status(state=state, reason=Reason.DONE, created=created, since=created + 60, saved_at=saved)
    metrics = {name: about.pop(name) for name in ("loss", "acc") if name in about}
    metric = next(iter(metrics), "")
    values = {"metrics": metrics, "metric": metric, "best": metrics.get(metric), **about}
    return RunInfo(id=name, url=f"/r/{name}", status=status, problem="" if status else "it is damaged", **values)


LIVE = {"created": 20.0, "saved": 9_000.0, "acc": 0.9, "left_s": 60.0, "tasks": 2, "accelerator": "l4"}
RUNS = [
    (0, info("digits-aaaaaa", created=10.0, loss=0.5, steps=70, rate=3.0, entry="train.py")),
    (0, info("digits-bbbbbb", State.FAILED, created=30.0, loss=0.1, steps=50, rate=5.0, labels=["team=vision"])),
    (1, info("mnist-cccccc", State.RUNNING, **LIVE)),
    (1, info("broken-dddddd", None)),
    (1, info("mnist-eeeeee", created=5.0, loss=None)),
]


def shown(**query: str) -> list[str]:
    return [row.info.id.partition("-")[2][0] for _, row in listing.listing(RUNS, listing.request_of(query), NOW).rows]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({}, "bcaed"),
        ({"sort": "created"}, "eacbd"),
        ({"sort": "-metric"}, "cabde"),
        ({"sort": "run"}, "dabce"),
        ({"q": "mnist running"}, "c"),
        ({"q": "damaged"}, "d"),
        ({"q": "loss<0.3"}, "b"),
        ({"q": "loss<=0.1"}, "b"),
        ({"q": "loss<0.1"}, ""),
        ({"q": "loss>=0.5"}, "a"),
        ({"q": "loss<"}, ""),
        ({"q": "train.py"}, "a"),
        ({"label": "team=vision"}, "b"),
        ({"sort": "left", "q": "mnist"}, "ce"),
        ({"sort": "risk", "q": "mnist"}, "ce"),
        ({"state": "UNREADABLE"}, "d"),
        ({"sort": "nonsense", "page": "x"}, "bcaed"),
    ],
)
def test_a_list_is_searched_and_sorted_and_a_run_without_the_value_comes_last(query, found: str) -> None:
    assert sorted(shown(**query)[-2:]) == sorted(found[-2:])
    assert "".join(shown(**query))[:-2] == found[:-2]


def test_a_row_says_how_far_a_run_is_how_fast_and_how_long_it_still_takes() -> None:
    live = info("r-aaaaaa", State.RUNNING, saved=NOW - 300, loss=0.5, steps=900, rate=0.25, left_s=400.0, curve="z0-0z")
    found = row(live, NOW)
    assert (found.share, found.pace, found.at_risk) == (0.9, "4 s a step, 6 min left", "5 min")
    assert live.status is not None
    assert row(replace(live, status=replace(live.status, reason=Reason.EVALUATING)), NOW).at_risk == "", "it is over"
    assert row(info("r-bbbbbb", rate=12.345), NOW).pace == "12.3 steps/s"
    assert row(info("r-bbbbbb", rate=1 / 1234), NOW).pace == "1234 s a step"
    assert row(info("r-cccccc"), NOW).share is None
    # A part that is no number is a gap.
    assert polylines("z0-0z") == ["0.0,1.0 25.0,23.0", "75.0,23.0 100.0,1.0"]


def test_results_have_counts_of_states_labels_and_pages_of_which_the_last_is_the_end() -> None:
    found = listing.listing(RUNS, listing.request_of({"q": "digits", "state": "FAILED"}), NOW)
    assert found.states == {"SUCCEEDED": 1, "FAILED": 1}
    assert found.labels == ["broken", "digits", "mnist", "team=vision"]
    many = [(0, info(f"r-{number:06}", created=float(number))) for number in range(2 * listing.PER_PAGE + 1)]
    found = listing.listing(many, listing.request_of({"page": "99"}), NOW)
    assert (found.matches, found.pages, found.request.page) == (len(many), 3, 3)
    assert [row.info.id for _, row in found.rows] == ["r-000000"]


@pytest.mark.parametrize("at", range(len(HOSTILE)), ids=lambda at: f"hostile-{at}")
def test_the_content_of_a_hostile_run_is_text_in_the_list(at: int) -> None:
    def made(text: str):
        status = Status(state=State.FAILED, reason=Reason.DONE, created=1.0)
        some = text or "m"
        about = {"labels": [some], "args": {some: some}, "metrics": {some: 1.0}, "curve": some + "0z", "tasks": 1}
        about |= {"place": text, **dict.fromkeys(("entry", "accelerator", "metric"), some)}
        whole = RunInfo(id=text, url=text, status=status, **about)
        runs = [whole, RunInfo(id=text, url=text, status=None, problem=some)]
        found = listing.listing([(0, run) for run in runs], listing.request_of({}), NOW)
        values = {"roots": [text], "problems": [text], "link": lambda **changed: "/", "refresh": 3}
        seen = Elements(pages.render("list.html", runs_page=found, **values)).found
        # A curve of other characters has other gaps.
        seen.pop(("polyline", ("points",)))
        return seen

    assert made(HOSTILE[at]) == made("plain")


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
