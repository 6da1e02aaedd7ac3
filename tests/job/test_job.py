from __future__ import annotations

import json
import math
from dataclasses import FrozenInstanceError, asdict
from functools import reduce

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import any_json

import sdk

CIRCULAR: dict = {}
CIRCULAR["itself"] = CIRCULAR


@settings(max_examples=30)
@given(st.dictionaries(st.text(), any_json()))
def test_whatever_json_can_carry_is_accepted_as_keyword_arguments_and_comes_back(args: dict) -> None:
    data = json.loads(json.dumps(asdict(sdk.Job("m:f", args=args))))
    assert sdk.Job(**data).args == args


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ("--epochs 3", "a list is argv"),
        ([math.nan], "[0] is nan"),
        ({"a": [1, {2, 3}]}, "['a'][1] is a builtins.set"),
        ({"a": math.inf}, "['a'] is inf"),
        ({1: 2}, "keyed by 1, not a string"),
        ([True], "an argv holds strings and numbers"),
        ([10**5000], "[0] is an integer of more than 4300 digits"),
        (CIRCULAR, "['itself'] is a container that holds itself"),
        ({"a": reduce(lambda inner, _: [inner], range(5000), [])}, "nested more than 100 levels deep"),
        (["\ud800"], "which UTF-8 cannot hold"),
    ],
)
def test_an_argument_that_is_not_json_is_named_by_its_place(args: object, said: str) -> None:
    with pytest.raises(sdk.InputError) as caught:
        sdk.Job("train.py", args=args)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("args", "argv"),
    [
        (None, []),
        (["--epochs", 3, 0.5], ["--epochs", "3", "0.5"]),
        ({"epochs": 3, "rate": 1e-3}, ["--epochs", "3", "--rate", "0.001"]),
        ({"fast": True, "slow": False, "none": None}, ["--fast"]),
        ({"sizes": [1, 2], "name": "a b"}, ["--sizes", "1", "2", "--name", "a b"]),
        ({"table": {"a": 1}}, ["--table", '{"a": 1}']),
        ({"a": -1e-5, "b": -3, "c": -0.5, "d": "--x"}, ["--a=-1e-05", "--b", "-3", "--c", "-0.5", "--d=--x"]),
    ],
)
def test_args_become_the_words_behind_a_script(args: object, argv: list[str]) -> None:
    assert sdk.Job("train.py", args=args).argv() == argv


@pytest.mark.parametrize(
    "name", ["1A", "A-B", "", "TF_CONFIG", "AIP_MODEL_DIR", "PODLIFT_TASK", "CLOUD_ML_JOB_ID", "KEY"]
)
def test_a_reserved_or_illegal_variable_is_refused_without_its_value(name: str) -> None:
    with pytest.raises(sdk.InputError) as caught:
        sdk.Job("train.py", env={name: "hunter2" + "\0" * (name == "KEY")})
    assert repr(name) in str(caught.value)
    assert name != "KEY" or "the value of 'KEY' holds a NUL character" in str(caught.value)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("field", ["timeout_s", "exit_wait_s"])
@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_a_time_that_is_not_finite_is_no_limit(field: str, value: float) -> None:
    with pytest.raises(sdk.InputError, match=field):
        sdk.Limits(**{field: value})


@pytest.mark.parametrize("workers", [1001, 10**5000], ids=["one too many", "no number of workers"])
def test_more_workers_than_any_cluster_has_are_refused(workers: int) -> None:
    with pytest.raises(sdk.InputError, match="workers: Must be less than or equal to 1000"):
        sdk.Resources(workers=workers)


def test_all_mistakes_of_one_job_are_in_one_error_and_a_job_cannot_be_changed() -> None:
    resources, limits = {"workers": 0, "accelerator": "gpu"}, {"grace_s": -1}
    with pytest.raises(sdk.InputError) as caught:
        sdk.Job("t.py", env={"1A": ""}, resources=resources, limits=limits, colour="red")
    assert len(caught.value.problems) == 5
    assert "Job has no field 'colour'" in str(caught.value)
    with pytest.raises(FrozenInstanceError):
        sdk.Job("train.py").entry = "other.py"  # type: ignore[misc]


def test_variables_that_no_process_can_have_are_refused() -> None:
    fits = sdk.Job("train.py", env={"KEY": "x" * (128 * 1024 - 5)})
    assert len(fits.env) == 1
    with pytest.raises(sdk.InputError, match=r"'KEY' has 131072 bytes, and Linux takes 131071 at most.*file"):
        sdk.Job("train.py", env={"KEY": "x" * (128 * 1024 - 4)})
    with pytest.raises(sdk.InputError, match="bytes together"):
        sdk.Job("train.py", env={f"KEY{i}": "x" * 100_000 for i in range(20)})
