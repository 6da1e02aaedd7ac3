from __future__ import annotations

import pytest

import sdk

COUNTS = "import json, os\nconfig = json.loads(os.environ['TF_CONFIG'])\nworkers = len(config['cluster']['worker'])\n"
ASKS = "def chief(task_type, task_id):\n    return (task_type == 'worker' and task_id == 0) or task_type is None\n"


def warnings_of(plan: sdk.Plan) -> list[str]:
    return [message for level, message in plan.findings if level == "warning"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (COUNTS, "train.py:3 takes the number of workers for the number of tasks"),
        (ASKS, "train.py:2 takes worker 0 for the chief"),
    ],
)
def test_a_program_that_expects_no_chief_is_told_how_to_get_a_cluster_without_one(write, text: str, said: str) -> None:
    write("train.py", text)
    (found,) = warnings_of(sdk.plan("train.py", workers=2))
    assert found.startswith(said)
    assert "cluster='workers'" in found
    without = sdk.Job("train.py", resources=sdk.Resources(workers=2, cluster="workers"))
    assert warnings_of(sdk.plan(without)) == []
    assert warnings_of(sdk.plan("train.py")) == [], "one task has no cluster"


@pytest.mark.parametrize(
    "text",
    [
        "cluster = {'worker': [1]}\nprint(len(cluster))\nprint(len([1]['worker':]))\n",
        "def chief(task_type, task_id):\n    return task_type == 'chief' or (task_type == 'worker' and 'chief' not in spec)\n",
        "task_id = 0\nif task_id == 0 and True:\n    pass\n",
    ],
)
def test_programs_that_ask_for_the_chief_hear_nothing(write, text: str) -> None:
    write("train.py", text)
    assert warnings_of(sdk.plan("train.py", workers=2)) == []
