"""Compares the results of the programs that run the cases of `programs/agreement.py`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np


def results(folder: Path, case: str) -> dict[str, Any]:
    """Return weights, predictions, history and evaluation of a case."""
    arrays = dict(np.load(folder / f"{case}.npz"))
    report = json.loads((folder / f"{case}.json").read_text())
    return arrays | {f"{part} {name}": np.array(v) for part, found in report.items() for name, v in found.items()}


def assert_same_on_all_tasks(folders: Sequence[Path], case: str) -> None:
    first, *others = (results(folder, case) for folder in folders)
    for other in others:
        assert other.keys() == first.keys()
        for name, value in first.items():
            np.testing.assert_array_equal(other[name], value, err_msg=name)


def assert_as_one(one: Path, folder: Path, case: str, tolerance: float) -> None:
    """Compare with one device, relative to the largest value of each array."""
    expected, found = results(one, case), results(folder, case)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        scale = np.max(np.abs(value), initial=1e-12)
        np.testing.assert_allclose(found[name], value, rtol=0, atol=tolerance * scale, err_msg=name)
