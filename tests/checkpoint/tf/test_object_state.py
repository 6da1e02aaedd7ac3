"""The logs of an epoch that come back unchanged, and the ones that are reported as lost."""

from types import SimpleNamespace
from typing import Any

import pytest
from support import needs

from sdk.checkpoint.tf import object_state
from sdk.runtime.hooks import fit

np = pytest.importorskip("numpy")
testing = pytest.importorskip("numpy.testing")  # old ones start a process as they are imported
needs("ml_dtypes")


def of_bfloat16(count: int) -> Any:
    import ml_dtypes

    return np.arange(count).astype(ml_dtypes.bfloat16)


def told(value: Any) -> list[str]:
    sentences: list[str] = []
    saved: Any = SimpleNamespace(_phase=SimpleNamespace(downgrade=sentences.append))
    fit._SavedFit._check_sizes(saved, {"m": value})
    return sentences


@pytest.mark.parametrize(
    "value",
    [np.zeros(2001, "f4"), {"a": [1, np.zeros(2001, "f4")]}, (np.zeros(2), {"b": np.zeros(1001)}), of_bfloat16(4001)],
    ids=["array", "in a list of a dict", "in a dict of a tuple", "bfloat16"],
)
def test_an_array_of_the_history_that_is_too_large_is_told_wherever_it_stands(value: Any) -> None:
    (sentence,) = told(value)
    assert sentence.startswith("the metric m has arrays of more than 8 kB")


@pytest.mark.parametrize(
    "value",
    [np.arange(2000, dtype="f4"), [{"a": np.arange(1000.0)}, np.arange(1000.0)], of_bfloat16(4000)],
    ids=["array", "several", "bfloat16"],
)
def test_an_array_of_the_history_of_which_nothing_is_told_comes_back_as_it_was(value: Any) -> None:
    assert told(value) == []
    testing.assert_equal(object_state.decode(object_state.encode(value, lossy=True)), value)
