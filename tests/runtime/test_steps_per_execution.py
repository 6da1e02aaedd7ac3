"""`steps_per_execution` changes how often Python is asked, and no number, with any number of replicas."""

import json
from pathlib import Path

import pytest
from support import PROGRAMS, needs

import sdk

np = pytest.importorskip("numpy")

pytestmark = [pytest.mark.tensorflow, pytest.mark.full]
needs("tensorflow")

SCRIPT = PROGRAMS / "steps.py"
EXAMPLES = {"finite": 110, "repeated": 100}
STEPS = {"finite": 12, "repeated": 10}


@pytest.fixture(
    scope="module", params=[1, pytest.param(2, marks=pytest.mark.full)], ids=["two replicas of one task", "two tasks"]
)
def seen(request, tmp_path_factory):
    run = sdk.submit(SCRIPT, workers=request.param, root=tmp_path_factory.mktemp("steps"))
    folder = Path(run.result(300).model_dir)
    log = "\n".join(line.text for line in run.logs(task="chief-0"))
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))], log


@pytest.mark.parametrize("shape", ["finite", "repeated"])
def test_several_steps_in_an_execution_give_the_numbers_of_one(seen, shape):
    for task in seen[0]:
        assert task["replicas"] == 2
        one, several = task[shape]["1"], task[shape]["3"]
        for name in ("history", "weights", "evaluate", "predict"):
            for a, b in zip(leaves(one[name]), leaves(several[name]), strict=True):
                np.testing.assert_allclose(a, b, rtol=0, atol=2e-6, err_msg=name)


@pytest.mark.parametrize("shape", ["finite", "repeated"])
def test_no_step_is_done_beyond_the_epoch_and_none_is_left_out(seen, shape):
    for task in seen[0]:
        for each in ("1", "3"):
            assert task[shape][each]["steps"] == STEPS[shape]
            assert len(task[shape][each]["predict"]) == EXAMPLES[shape]


def test_a_step_that_is_a_function_of_its_own_can_be_called_by_a_loop_that_is_one_too(seen):
    for task in seen[0]:
        by_python, by_a_loop = task["loop"]
        assert by_a_loop == by_python == 2.0 * task["replicas"]


def test_the_log_names_the_cure_once(seen):
    assert seen[1].count("patch steps-per-execution") == 1


def leaves(value):
    """Return all arrays of a nest: a list of lists that do not fit together is a nest too."""
    if isinstance(value, dict):
        return [leaf for name in sorted(value) for leaf in leaves(value[name])]
    try:
        return [np.asarray(value, dtype=float)]
    except ValueError:
        return [leaf for item in value for leaf in leaves(item)]
