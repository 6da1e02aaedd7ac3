"""Two processes, and four devices: every replica goes on with its own moving statistics, metrics and data."""

import sys
from pathlib import Path

import pytest
from support import needs

pytestmark = [pytest.mark.tensorflow, pytest.mark.full]

needs("tensorflow")
sys.path[:0] = [str(Path(__file__).resolve().parent)]

import task_processes  # noqa: E402
from test_keras_epochs import SCRIPT, differences, trained  # noqa: E402

QUICK = ["shuffled"]
FULL = ["arrays", "shuffled", "decay", "cached", "pydataset", "arrays_with_steps"]


def trained_by_two(folder, cases):
    for mode in ("whole", "resumed"):
        ended = task_processes.run(
            SCRIPT, [mode, str(folder), *cases], folder / mode, 2, FIT_DEVICES="0", timeout_s=200
        )
        for code, output in ended:
            assert code == 0, output[-5000:]


def assert_exact(folder, cases, ranks):
    found = {(case, rank): differences(folder, case, rank)[0] for case in cases for rank in range(ranks)}
    assert {key: differ for key, differ in found.items() if differ} == {}


@pytest.mark.full
def test_two_tasks_go_on_exactly_with_what_each_has_for_itself(tmp_path):
    trained_by_two(tmp_path, QUICK)
    assert_exact(tmp_path, QUICK, 2)
    assert all(differences(tmp_path, "shuffled", rank)[1][(1, 4)][0] == "exact" for rank in range(2))


@pytest.mark.full
def test_four_devices_go_on_exactly(tmp_path):
    trained(tmp_path, ["shuffled"], FIT_DEVICES="4")
    assert_exact(tmp_path, ["shuffled"], 1)


@pytest.mark.full
def test_every_kind_of_data_of_two_tasks_is_resumed_exactly(tmp_path):
    trained_by_two(tmp_path, FULL)
    assert_exact(tmp_path, FULL, 2)
