"""Inputs on their way: named in a Job, looked for before the submit, found by the program."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import LIMIT_S

import sdk


@pytest.mark.process
def test_the_program_finds_a_path_that_was_relative_to_the_callers_folder(write, tmp_path: Path) -> None:
    text = """
        import json, os, sdk
        place = sdk.context().inputs["train"]
        print(place, open(os.path.join(place, "a.csv")).read())
    """
    write("train.py", text)
    write("../data/a.csv", "1,2")
    run = sdk.submit(sdk.Job("train.py", inputs={"train": Path("../data")}, resources=sdk.Resources(workers=2)))
    run.result(LIMIT_S)
    for task in run.plan.tasks:
        said = [line.text for line in run.logs(task=task) if not line.text.startswith("podlift: ")]
        assert said == [f"{tmp_path}/data 1,2"]
    assert run.plan.inputs == {"train": f"{tmp_path}/data"}


@pytest.mark.process
def test_a_function_finds_them_too_and_a_plan_shows_them(write, tmp_path: Path) -> None:
    write("train.py", "import sdk\ndef main():\n    return sdk.context().inputs\n")
    write("data.csv", "1")
    job = sdk.Job("train:main", inputs={"train": "data.csv", "all": "*.csv"})
    plan = sdk.plan(job)
    places = {"train": f"{tmp_path}/project/data.csv", "all": f"{tmp_path}/project/*.csv"}
    assert places["train"] in str(plan)
    assert sdk.submit(plan).result(LIMIT_S).value == places


def test_an_input_that_is_not_there_starts_nothing(write, root: Path) -> None:
    write("train.py", "print(1)")
    write("data/train.csv")
    job = sdk.Job("train.py", inputs={"train": "data/tran.csv", "test": "memory://x"})
    with pytest.raises(sdk.InputError) as caught:
        sdk.submit(job)
    assert len(caught.value.problems) == 2
    assert "Did you mean 'train.csv'?" in str(caught.value)
    assert not root.exists()
