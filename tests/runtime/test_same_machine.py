"""Workers on one machine add up their gradients through its memory: nothing but the time changes."""

import json
from pathlib import Path

import pytest
from support import PROGRAMS, needs

import sdk

needs("tensorflow")
pytestmark = pytest.mark.full
SAID = "the 2 tasks share this machine, and add up their gradients through its memory"


@pytest.fixture(scope="module")
def ended(tmp_path_factory, warm_runs):
    with warm_runs:
        run = sdk.submit(PROGRAMS / "added_up.py", workers=2, root=tmp_path_factory.mktemp("added"))
        return Path(run.result(300).model_dir), [line.text for line in run.logs()]


def test_collectives_give_the_bits_of_a_ring_whatever_the_type_size_and_order(ended):
    found = [json.loads(path.read_text()) for path in sorted(ended[0].glob("*.json"))]
    assert len(found) == 2
    for task in found:
        assert len(task) > 15
        assert [name for name, equal in task.items() if not equal] == []


def test_each_task_says_once_that_it_uses_the_memory(ended):
    assert sum(SAID in line for line in ended[1]) == 2
