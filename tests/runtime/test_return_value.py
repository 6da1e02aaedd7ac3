"""The value of a function comes back, as far as JSON can hold it; the rest is named, and the run has succeeded all the same."""

import collections
import datetime
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sdk
from sdk.runtime.return_value import encode

pytestmark = [pytest.mark.process]

Point = collections.namedtuple("Point", "x y")


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ((0.5, 0.25), [0.5, 0.25]),
        (Point(1, 2), [1, 2]),
        ({3, 1}, [1, 3]),
        (np.float32(0.5), 0.5),
        (np.int64(7), 7),
        (np.arange(4).reshape(2, 2), [[0, 1], [2, 3]]),
        ({"loss": [np.float32(1.0), math.nan]}, {"loss": [1.0, "NaN"]}),
        ([math.inf, -math.inf, np.float32("nan")], ["Infinity", "-Infinity", "NaN"]),
        ({1: "a", 2.5: "b", False: "c"}, {"1": "a", "2.5": "b", "false": "c"}),
        ({"path": Path("a/b"), "day": datetime.date(2026, 1, 2)}, {"path": "a/b", "day": "2026-01-02"}),
        (collections.OrderedDict(a=np.str_("x")), {"a": "x"}),
    ],
)
def test_a_convertible_value_is_converted(value: Any, found: Any) -> None:
    assert encode(value) == (found, [])


class Odd:
    def __repr__(self) -> str:
        raise RuntimeError("no")


class Broken(dict):
    def items(self) -> Any:
        raise RuntimeError("closed")


HOLDS_ITSELF: list[Any] = []
HOLDS_ITSELF.append(HOLDS_ITSELF)


@pytest.mark.parametrize(
    ("value", "found", "said"),
    [
        (Odd(), None, "value is of type test_return_value.Odd: JSON cannot hold it."),
        ({"a": 1, "model": Odd()}, {"a": 1, "model": None}, "value['model'] is of type test_return_value.Odd"),
        ([1, b"x"], [1, None], "value[1] is of type bytes"),
        ({"w": np.zeros(10_001)}, {"w": None}, "value['w'] is of type numpy.ndarray: it has 10,001 elements"),
        ({(1, 2): 3}, {}, "the key of value[(1, 2)] is of type tuple: a key in JSON is a string"),
        (Broken(), None, "RuntimeError: closed"),
        (HOLDS_ITSELF, [None], "value[0] is of type list: it contains itself"),
        ({"big": 10**5000}, {"big": None}, "value['big'] is of type int"),
        ({1: "a", "1": "b"}, {"1": "a"}, "another key is the same string"),
    ],
)
def test_a_value_that_does_not_convert_is_named_and_the_rest_is_kept(value: Any, found: Any, said: str) -> None:
    kept, refused = encode(value)
    assert kept == found
    assert len(refused) == 1
    assert said in refused[0]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.complex_numbers(),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.text() | st.integers() | st.none(), inner) | st.tuples(inner, inner)
    ),
    max_leaves=20,
)


@settings(max_examples=30)
@given(VALUES)
def test_whatever_is_returned_becomes_strict_json(value: Any) -> None:
    found, _ = encode(value)
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_a_run_with_a_value_that_json_cannot_hold_succeeds_and_its_status_names_it(write, capfd) -> None:
    write("train.py", """
        import os, pathlib
        def main():
            pathlib.Path("left.txt").write_text("here")
            return {"loss": (0.5, float("nan")), "model": object()}
        """)  # fmt: skip
    run = sdk.submit("train:main")
    result = run.result(60)
    assert result.value == {"loss": [0.5, "NaN"], "model": None}
    assert Path(result.outputs_dir, "work/left.txt").read_text() == "here"
    said = "value['model'] is of type object: JSON cannot hold it."
    (finding,) = run.status().findings
    assert said in finding
    assert said in run.why()
    assert any(said in line.text for line in run.logs())
    (listed,) = sdk.runs()
    assert listed.status is not None
    assert listed.status.findings == (finding,)
