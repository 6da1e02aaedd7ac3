"""What a user gives a sweep: ranges, choices and mistakes before anything is spent; successive halving of curves."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sdk
from sdk.backends.vertex.backend import VertexBackend
from sdk.job.wire import decode
from sdk.planning.settings.merge import Destination
from sdk.sweeps import creation, halving, space
from sdk.sweeps.space import Parameter

FINITE, ABOVE, WHOLE = st.floats(-1e6, 1e6), st.floats(1e-3, 1e6), st.integers(-99, 99)
VALUES = st.integers() | st.sampled_from(["adam", "sgd", True, None, 0.5])
PARAMETERS = st.one_of(
    st.builds(lambda low, span: sdk.Uniform(low, low + span), FINITE, ABOVE),
    st.builds(lambda low, factor: sdk.LogUniform(low, low * factor), ABOVE, st.floats(1.001, 1e3)),
    st.builds(
        lambda low, span, step: sdk.IntUniform(low, low + span, step), WHOLE, st.integers(1, 99), st.integers(1, 9)
    ),
    st.lists(VALUES, min_size=2, unique=True).map(lambda values: sdk.Choice(*values)),
)


@pytest.mark.parametrize(
    ("text", "parameter"),
    [
        ("log:1e-5..1e-1", sdk.LogUniform(1e-5, 1e-1)),
        ("0.0..0.5", sdk.Uniform(0, 0.5)),
        ("-1.5..2:.5", sdk.Uniform(-1.5, 2, 0.5)),
        ("1..8", sdk.IntUniform(1, 8)),
        ("16..128:16", sdk.IntUniform(16, 128, 16)),
        ("log:16..1024", sdk.IntUniform(16, 1024, log=True)),
        ("32,64", sdk.Choice(32, 64)),
        ("adam, sgd", sdk.Choice("adam", "sgd")),
        ("true,null,0.1,x y", sdk.Choice(True, None, 0.1, "x y")),
        ("v1.2", sdk.Choice("v1.2")),
    ],
)
def test_the_text_of_an_option_is_a_range_or_choices(text: str, parameter: Parameter) -> None:
    assert space.from_options([f"p={text}"], {}) == {"p": parameter}


@given(PARAMETERS)
def test_a_parameter_survives_its_text_and_its_record(parameter: Parameter) -> None:
    assert space.parse("p", str(parameter)) == parameter
    assert decode(Parameter, json.loads(json.dumps(asdict(parameter)))) == parameter


@given(PARAMETERS, st.integers(0, 10**6))
def test_the_points_of_a_space_are_all_different_and_inside(parameter: Parameter, number: int) -> None:
    among = space.values(parameter)
    if among is None:
        return
    known = {"a": parameter, "b": sdk.Choice(1, 2)}
    points = [tuple(map(repr, space.point(known, each).values())) for each in range(2 * len(among))]
    assert len(set(points)) == 2 * len(among)
    if parameter.options is None:
        assert all(parameter.low <= value <= parameter.high + 1e-6 for value in among)


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ("log:0..1", "space: p: a logarithm needs a lower bound above 0, and it is 0. Received: 'log:0..1'."),
        ("2..2", "space: p: the range is empty: the lower bound 2 is not below the upper bound 2. Received: '2..2'."),
        (sdk.Uniform(1, 0), "space: p: the range is empty: the lower bound 1.0 is not below the upper bound 0.0."),
        (sdk.Uniform(0, float("inf")), "space: p: the bounds and the step must be finite numbers."),
        ("0.0..1.0:0", "space: p: the step must be above 0, and it is 0.0."),
        ("log:1..8:2", "space: p: a logarithm and a step exclude each other."),
        ("1..x", "space: p: not a range or a choice. Received: '1..x'. Known forms: log:1e-5..1e-1, 0.0..0.5,"),
        ([], "space: p: a choice needs at least one value."),
        ([1, 1], "space: p: 1 is there twice."),
        ([2, 1, True], "space: p: 1 and true are equal."),
        ("log:1e-5,1e-1", "space: p: not a range or a choice. Received: 'log:1e-5,1e-1'."),
        ("adam,,sgd", "space: p: not a range or a choice. Received: 'adam,,sgd'."),
        ([(1, 2)], "space: p: a choice has texts, numbers, True, False or None, not (1, 2)."),
        (3, "space: p: not a range or a choice. Received: 3."),
    ],
)
def test_a_wrong_range_is_a_sentence(value: object, sentence: str) -> None:
    with pytest.raises(sdk.InputError) as raised:
        space.of({"p": value, "no name": "1..2", "units": "2..1"})
    assert raised.value.problems[0].startswith(sentence)
    assert len(raised.value.problems) == 3, "all mistakes of a space are one error"


CURVES = st.lists(st.lists(st.integers(0, 99), max_size=10).map(lambda values: dict(enumerate(values, 1))), max_size=12)


def test_a_trial_is_judged_at_the_highest_rung_that_it_has_reached() -> None:
    cases = {(0, 0): None, (1, 0): 0, (2, 0): 0, (3, 0): 1, (2, 1): None, (3, 1): 1, (8, 2): None, (9, 2): 2}
    assert {case: halving.rung(*case) for case in cases} == cases
    assert halving.rung(9, halving.LAST) is None
    assert halving.at_rung({1: 5.0, 2: 7.0, 3: 6.0, 4: 9.0}, 1, "max") == 7.0, "of the epochs until then"
    assert halving.at_rung({1: 5.0, 2: 7.0}, 1, "max") is None


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


SCRIPT = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
parser.add_argument("-u", "--units", type=int)
print(parser.parse_args())
"""
ANY = SCRIPT.replace("parse_args", "parse_known_args")
FUNCTION = "def main(lr, units=3):\n    pass\n"
GOOD: dict[str, Any] = {"space": {"lr": "log:1e-4..1e-1"}, "metric": "loss", "mode": "min", "trials": 4}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def mistakes(folder: Path, text: str = SCRIPT, entry: str = "train.py", **about: Any) -> tuple[str, ...]:
    (folder / "train.py").write_text(text)
    with pytest.raises(sdk.InputError) as raised:
        sdk.sweep(entry, **{**GOOD, "root": folder / "root", "name": "one", **about})
    assert not (folder / "root").exists()
    return raised.value.problems


@pytest.mark.parametrize(
    ("about", "sentence"),
    [
        ({"space": {"unit": "1..8"}, "text": SCRIPT.replace("--units", "--width")},
         "space: train.py takes no argument --unit. Known: lr, width."),
        ({"space": {"lrs": "1..8"}}, "space: train.py takes no argument --lrs. Did you mean 'lr'?"),
        ({"space": {"lrs": "1..8", "lr": [1, 2]}, "text": FUNCTION, "entry": "train:main"}, "lrs"),
        ({"space": {"units": [32, 64]}}, "The space has 2 points, fewer than trials=4. Next: --trials 2 --sampler grid."),
        ({"sampler": "grid"},
         "sampler: a grid needs parameters with values that can be counted, and lr has a range of numbers. Next: a step, such "
         "as 0.0..0.5:0.1, or --sampler random."),
        ({"sampler": "tpes"}, "sampler: unknown. Received: 'tpes'. Did you mean 'tpe'?"),
        ({"mode": "maximum"}, "mode: unknown. Received: 'maximum'. Did you mean 'max'?"),
        ({"pruner": "hyperband"}, "pruner: unknown. Received: 'hyperband'. Known: asha, median, none."),
        ({"metric": ""}, "metric: name the metric that the program reports. Received: ''."),
        ({"trials": 0}, "trials must be a whole number from 1. Received: 0."),
        ({"parallel": 0}, "parallel must be a whole number from 1. Received: 0."),
        ({"space": {}}, 'space: name a parameter, such as {"lr": "log:1e-5..1e-1"}. Received: {}.'),
        ({"args": {"lr": 1}}, "lr is a parameter of the space and an argument. Next: remove one."),
        ({"max_cost_usd": 0}, "max_cost_usd must be above 0. Received: 0."),
        ({"name": "a" * 38}, f"The name is too long. Received: {'a' * 38!r}. Allowed: 34 characters."),
        ({"worker": 2}, "Unknown setting 'worker'. Did you mean 'workers'?"),
    ],
)  # fmt: skip
def test_a_mistake_is_a_sentence_and_nothing_is_written(tmp_path, about: dict, sentence: str) -> None:
    found = mistakes(tmp_path, **about)
    assert any(problem == sentence or (len(sentence) < 9 and sentence in problem) for problem in found), found


@pytest.mark.parametrize("text", [SCRIPT, SCRIPT.replace('"--units"', "NAME"), ANY, "import sys\nprint(sys.argv)\n"])
def test_a_program_with_unreadable_arguments_is_not_refused(tmp_path: Path, text: str) -> None:
    known = text == SCRIPT
    (tmp_path / "train.py").write_text(text)
    about = {**GOOD, "space": {"unit" if known else "other": "1..8"}, "root": tmp_path / "root", "name": "one"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sdk.sweeps.creation.start", lambda *about: False)
        assert sdk.sweep(tmp_path / "train.py", **about).name == "one"


def test_all_mistakes_are_one_error_and_a_limit_below_the_cost_of_one_trial_is_one(tmp_path: Path) -> None:
    assert len(mistakes(tmp_path, space={"lr": "log:0..1"}, mode="most", trials=0)) == 3
    vertex = sdk.Vertex(project="mine", bucket="mine", regions=["us-central1"])
    about = {"backend": vertex, "accelerator": "t4", "max_cost_usd": 0.2, "timeout": "1h", "root": None}
    sentence = "no trial could start: 0.0000 USD of 0.20 USD are spent, and this trial may cost 0.62 USD."
    assert f"max_cost_usd=0.2: {sentence}" in mistakes(tmp_path, **about)


@pytest.mark.parametrize(("limits", "parallel"), [({}, 4), ({"us-east1": 7}, 3), ({"us-east1": 1}, 1)])
def test_fewer_trials_run_at_a_time_if_the_quota_is_known_to_be_small(tmp_path, monkeypatch, limits, parallel) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    metric = "aiplatform.googleapis.com/custom_model_training_nvidia_l4_gpus"
    online, probe = {"quotas": {metric: {"exists": True, "error": "", "limits": limits}}}, VertexBackend.probe
    monkeypatch.setattr(VertexBackend, "probe", lambda *words, **named: replace(probe(*words, **named), online=online))
    vertex = sdk.Vertex(project="podlift-1", bucket="mine", regions=["us-east1"], image="gcr.io/a/b:1")
    about = {**GOOD, "trials": 9, "parallel": None, "pruner": "none", "sampler": "tpe", "seed": 0}
    prepared = creation.prepare(
        "train.py", {"accelerator": "l4:2", "timeout": "1h"}, Destination(backend=vertex), about
    )
    assert prepared.spec.parallel == parallel
