"""A fit that goes on in another process ends with the very weights of one that was never interrupted."""

import os
import pickle
import subprocess
import sys

import pytest
from support import PROGRAMS, needs
from support import REPO as ROOT

np = pytest.importorskip("numpy")

pytestmark = [pytest.mark.tensorflow, pytest.mark.full]
needs("tensorflow")

SCRIPT = PROGRAMS / "fit_cases.py"

EXACT = ["shuffled", "cached", "shuffled_with_steps"]
QUICK = ["arrays", "shuffled", "from_generator"]
FULL = [
    *QUICK,
    "decay",
    "pydataset",
    "arrays_in_batches",
    "arrays_and_validation",
    "arrays_with_steps",
    "arrays_two_steps_each",
    "shuffled_with_steps",
    "steps_across_the_end",
    "unknown_size",
    "cached",
    "numpy_function",
    "generator",
    "stateful_random",
    "own_model",
    "loss_scale",
]


def trained(folder, cases, **environment):
    for mode in ("whole", "resumed"):
        env = os.environ | {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "-1"} | environment
        command = [sys.executable, str(SCRIPT), mode, str(folder), *cases]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=1200)
        assert done.returncode == 0, done.stderr[-5000:]


def differences(folder, case, rank=0):
    """Return what differs, by point, and what was told about each point."""
    whole, kept = pickle.loads((folder / f"{case}.whole.{rank}").read_bytes())
    resumed = pickle.loads((folder / f"{case}.resumed.{rank}").read_bytes())
    assert resumed.keys() == kept.keys() and kept
    found = {}
    for at, result in resumed.items():
        differ = {
            path
            for path, values in whole["values"].items()
            if any(a.tobytes() != b.tobytes() for a, b in zip(values, result["values"][path], strict=True))
        }
        differ |= set() if result["next"] == whole["next"] else {"the next random numbers"}
        if differ:
            found[at] = differ
    return found, {at: state["told"] for at, state in kept.items()}


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    folder = tmp_path_factory.mktemp("quick")
    trained(folder, QUICK)
    return folder


@pytest.mark.parametrize("case", QUICK)
def test_a_resumed_fit_ends_bitwise_where_the_undisturbed_one_does(quick, case):
    found, told = differences(quick, case)
    assert found == {}, told
    assert not any(why for _, _, why in told.values())


@pytest.mark.full
@pytest.mark.parametrize("devices", [1, 4])
def test_every_kind_of_data_is_resumed_exactly(tmp_path, devices):
    # Of unknown size or from a generator, data under a strategy is a downgrade that is told.
    cases = (
        FULL if devices == 1 else [case for case in FULL if case not in ("generator", "unknown_size", "from_generator")]
    )
    trained(tmp_path, cases, FIT_DEVICES=str(devices))
    found = {case: differences(tmp_path, case) for case in cases}
    assert {case: differ for case, (differ, _) in found.items() if differ} == {}
    kinds = {case: told[(1, 4)][0] for case, (_, told) in found.items() if (1, 4) in told}
    assert all(kinds[case] == ("exact" if devices == 1 else "skip") for case in EXACT)
