"""The gate of a job: its accepted values, and every mistake in one error."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import input_error

import sdk
from sdk.job.gates import Gain, Guard

FINITE, COMPARISONS = st.floats(-1e12, 1e12), st.sampled_from([">=", ">", "<=", "<"])
ASKED = {"evaluate": "quality:measure", "data": "test", "metric": "accuracy"}


@pytest.mark.parametrize(
    ("text", "champion", "bound"),
    [
        ("accuracy >= 0.9", None, 0.9),
        ("loss < -1.5e-3", None, -1.5e-3),
        ("accuracy[eights] >= champion - 0.01", 0.95, 0.94),
        ("loss <= champion * 1.05", 2.0, 2.1),
        ("loss <= champion", 0.25, 0.25),
        ("loss <= champion", None, None),
        ("loss <= champion", math.nan, None),
    ],
)
def test_a_guard_is_a_bound_for_one_metric(text: str, champion: float | None, bound: float | None) -> None:
    assert Guard.parse(text).bound(champion) == (None if bound is None else pytest.approx(bound))


@given(COMPARISONS, st.sampled_from("+-*"), st.floats(0, 1e6), st.sampled_from(["", " "]), FINITE)
def test_a_guard_reads_its_written_form(comparison: str, sign: str, number: float, space: str, champion: float) -> None:
    guard = Guard.parse(f"accuracy{space}{comparison}{space}champion{space}{sign}{space}{number!r}")
    expected = {"+": champion + number, "-": champion - number, "*": champion * number}[sign]
    bound = guard.bound(champion)
    assert (guard.metric, guard.comparison) == ("accuracy", comparison)
    assert bound is not None and math.isclose(bound, expected, rel_tol=1e-9, abs_tol=1e-3)
    assert not any(guard.holds(value, bound) for value in (math.nan, math.inf, -math.inf))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not a guard. Received: ''"),
        ("accuracy", "Expected: 'accuracy >= 0.9'"),
        ("accuracy => 0.9", "unknown comparison '=>'"),
        ("accuracy >= good", "not a bound: 'good'"),
        ("accuracy >= champion / 2", "not a bound: 'champion / 2'"),
        ("0.8 <= accuracy <= 0.9", "not a bound: 'accuracy <= 0.9'"),
        ("accuracy >= nan", "not a bound: 'nan'"),
        ("accuracy >= 1e999", "not a bound: '1e999'"),
    ],
)
def test_a_text_that_is_no_guard_is_refused_with_an_example(text: str, said: str) -> None:
    with input_error("guards: ", said):
        sdk.Gate(**ASKED, guards=[text])


@given(st.text(max_size=30))
def test_any_text_is_a_guard_or_an_error_of_input(text: str) -> None:
    try:
        guard = Guard.parse(text)
    except sdk.InputError:
        return
    assert Guard.parse(guard.text) == guard
    assert math.isfinite(guard.bound(1.0) or 0.0)


@pytest.mark.parametrize(
    ("text", "champion", "needed"),
    [("0.01", 0.5, 0.01), ("1%", 0.5, 0.005), ("1 %", -200.0, 2.0), ("10%", 0.0, 0.0), ("1e-3", 9.0, 0.001)],
)
def test_a_gain_is_a_difference_or_a_part_of_the_champions_value(text: str, champion: float, needed: float) -> None:
    assert Gain.parse(text).over(champion) == pytest.approx(needed)


@pytest.mark.parametrize("gain", ["-0.01", "1%%", "a bit", "", "nan", "1e999", math.nan, -1, True, [1]])
@pytest.mark.parametrize("field", ["min_gain", "ask_below"])
def test_a_value_that_is_no_gain_is_refused(field: str, gain: Any) -> None:
    with pytest.raises(sdk.InputError, match=f"^{field}: "):
        sdk.Gate(**ASKED, **{field: gain})


def test_a_metric_has_to_show_which_value_is_better() -> None:
    for metric, mode in (
        ("accuracy", "max"), ("val_loss", "min"), ("max:score", "max"), ("min:accuracy", "min"),
        ("previous_loss", "min"), ("auc_1", "max"), ("mean_io_u", "max"), ("mean_squared_error", "min"),
    ):  # fmt: skip
        gate = sdk.Gate(**{**ASKED, "metric": metric})
        assert (gate.measured, gate.mode) == (metric.rpartition(":")[2], mode)
    for metric, said in (
        ("score", "Next: 'max:score' or 'min:score'"), ("best:score", "or min:NAME, or max:NAME"),
        ("accepted", "Next: 'max:accepted'"), ("accuracy_loss", "Next: 'max:accuracy_loss'"), ("min:max:x", "or min:NAME"),
        ("max: score", "without blanks"), ("", "without blanks"),
    ):  # fmt: skip
        with pytest.raises(sdk.InputError, match=f"^metric: .*{said}"):
            sdk.Gate(**{**ASKED, "metric": metric})


def test_all_mistakes_of_a_gate_are_in_one_error() -> None:
    guards = ["accuracy => 1", "loss", "loss <= champion"]
    parts = (
        "evaluate: must be module:function of the packaged code, nearest 'quality:measure'. Received:",
        "unknown comparison '=>'",
        "not a guard. Received: 'loss'",
        "Gate has no field 'guard'. Did you mean 'guards'?",
        "metric: missing.",
        "ask_below: must be more than min_gain, which is '2%'. Received: '1%'.",
    )
    with input_error(*parts, problems=6):
        sdk.Gate(evaluate="quality.py:measure", min_gain="2%", ask_below="1%", guards=guards, guard="loss < 1")


def test_gate_fields_without_a_function_are_refused_unless_the_gate_is_switched_off() -> None:
    with pytest.raises(sdk.InputError) as caught:
        sdk.Job("train.py", gate={"metric": "accuracy", "min_gain": 1})
    assert caught.value.problems == (
        "metric: no effect without evaluate, the function of the gate.",
        "min_gain: no effect without evaluate, the function of the gate.",
    )
    assert sdk.Gate(evaluate=None, metric="accuracy").evaluate is None


def test_a_number_is_a_gain_too_and_a_gate_comes_back_from_its_json() -> None:
    gate = sdk.Gate(**ASKED, min_gain=0.01, guards=("a >= 1",), ask_below=1)
    assert (gate.min_gain, gate.ask_below) == ("0.01", "1")
    assert sdk.Gate(**json.loads(json.dumps(asdict(gate)))) == gate


def test_mistakes_in_settings_of_the_gate_are_named_by_setting_with_their_source(write, monkeypatch) -> None:
    write("train.py", "print(1)")
    monkeypatch.setenv("PODLIFT_GATE_GUARDS", '["loss"]')
    monkeypatch.setenv("PODLIFT_MODEL", "My Model")
    guards = ("gate_guards: not a guard. Received: 'loss'", "gate_guards comes from PODLIFT_GATE_GUARDS.")
    more = ("gate_metric: missing.", "Nearest: 'my-model'", "warm_start: Must be 'champion' or 'last'")
    with input_error(*guards, *more):
        sdk.plan("train.py", gate_evaluate="quality:measure", warm_start="best")  # type: ignore[arg-type]


def test_a_run_is_registered_under_its_own_name_unless_a_model_is_named(write) -> None:
    write("train.py", "print(1)")
    assert sdk.plan("train.py", name="weekly").model == ""
    assert sdk.plan("train.py", name="weekly", warm_start="champion").model == "weekly"
    assert sdk.plan("train.py", name="weekly", model="digits").model == "digits"
