"""A fit that goes on in another process ends with the very weights of one that was never interrupted.

Of two tasks and of four devices, every replica goes on with its own moving statistics, metrics and data.
"""

import os
import pickle
import subprocess
import sys

import pytest
import task_processes
from support import LONG_LIMIT_S, PROGRAMS, REPO, needs

np = pytest.importorskip("numpy")

pytestmark = [pytest.mark.tensorflow, pytest.mark.full]
needs("tensorflow")

SCRIPT = PROGRAMS / "fit_cases.py"
FOR_TASKS = ["arrays", "shuffled", "decay", "cached", "pydataset", "arrays_with_steps"]
EVERY = [
    *(*FOR_TASKS, "generator", "unknown_size", "from_generator"),
    *("arrays_in_batches", "arrays_and_validation", "arrays_two_steps_each", "shuffled_with_steps"),
    *("steps_across_the_end", "numpy_function", "stateful_random", "own_model", "loss_scale"),
]


def trained(folder, cases, devices):
    for mode in ("whole", "resumed"):
        env = os.environ | {"PYTHONPATH": str(REPO), "CUDA_VISIBLE_DEVICES": "-1", "FIT_DEVICES": str(devices)}
        command = [sys.executable, str(SCRIPT), mode, str(folder), *cases]
        # Four devices hand over to each other thousands of times, each time when the scheduler lets them: slow under load.
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=3600)
        assert done.returncode == 0, done.stderr[-5000:]


def differences(folder, case, rank=0):
    """Return the differences and the messages, both by point."""
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


@pytest.mark.parametrize("devices", [1, 4])
def test_every_kind_of_data_is_resumed_exactly(tmp_path, devices):
    # Devices of one process hand over to each other thousands of times: a few cases show the effect.
    cases = (
        EVERY
        if devices == 1
        else ["arrays", "shuffled", "cached", "stateful_random", "own_model", "shuffled_with_steps"]
    )
    trained(tmp_path, cases, devices)
    found = {case: differences(tmp_path, case) for case in cases}
    assert {case: differ for case, (differ, _) in found.items() if differ} == {}
    kinds = {case: told[(1, 4)][0] for case, (_, told) in found.items() if (1, 4) in told}
    for case in {"shuffled", "cached", "shuffled_with_steps"} & set(cases):
        assert kinds[case] == ("exact" if devices == 1 else "skip")
    if devices == 1:
        for case in ("arrays", "shuffled", "from_generator"):
            assert not any(why for _, _, why in found[case][1].values())


def test_every_kind_of_data_of_two_tasks_is_resumed_exactly(tmp_path):
    for mode in ("whole", "resumed"):
        words = [mode, str(tmp_path), *FOR_TASKS]
        for code, output in task_processes.run(
            SCRIPT, words, tmp_path / mode, 2, FIT_DEVICES="0", timeout_s=LONG_LIMIT_S
        ):
            assert code == 0, output[-5000:]
    found = {(case, rank): differences(tmp_path, case, rank) for case in FOR_TASKS for rank in range(2)}
    assert {key: differ for key, (differ, _) in found.items() if differ} == {}
    assert all(found["shuffled", rank][1][(1, 4)][0] == "exact" for rank in range(2))
