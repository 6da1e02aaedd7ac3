"""The ranges and choices of parameters: their texts, their values, and the sentences about wrong ones."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sdk
from sdk.job.wire import decode
from sdk.sweeps import space
from sdk.sweeps.space import Parameter

FINITE = st.floats(-1e6, 1e6)
ABOVE = st.floats(1e-3, 1e6)
PARAMETERS = st.one_of(
    st.tuples(FINITE, ABOVE).map(lambda pair: sdk.Uniform(pair[0], pair[0] + pair[1])),
    st.tuples(ABOVE, st.floats(1.001, 1e3)).map(lambda pair: sdk.LogUniform(pair[0], pair[0] * pair[1])),
    st.tuples(st.integers(-99, 99), st.integers(1, 99), st.integers(1, 9)).map(
        lambda three: sdk.IntUniform(three[0], three[0] + three[1], three[2])
    ),
    st.lists(st.integers() | st.sampled_from(["adam", "sgd", True, None, 0.5]), min_size=2, unique=True).map(
        lambda values: sdk.Choice(*values)
    ),
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
        space.of({"p": value})
    assert raised.value.problems[0].startswith(sentence)


def test_all_mistakes_of_a_space_are_one_error() -> None:
    with pytest.raises(sdk.InputError) as raised:
        space.of({"lr": "log:0..1", "no name": "1..2", "units": "2..1"})
    assert len(raised.value.problems) == 3
