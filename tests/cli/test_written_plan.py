"""A plan in a file: made here, looked at, and executed later exactly as it is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import sdk

pytestmark = pytest.mark.usefixtures("warm_podlift")


@pytest.mark.process
def test_a_written_plan_is_executed_exactly(write, here, tmp_path: Path, monkeypatch) -> None:
    write("train.py", "import sys; print(sys.argv[1:])")
    planned = here("plan", "train.py", "-v", "-o", "p.json", "--workers", "2", "--", "--epochs", "3")
    assert (planned.code, "podlift submit p.json" in planned.stderr) == (0, True)
    plan = sdk.Plan.from_json(Path("p.json").read_text(), "p.json")
    assert str(plan) + "\n" == planned.stdout
    monkeypatch.setenv("PODLIFT_WORKERS", "7")
    shown = here("submit", "p.json", "--json")
    assert shown.code == 0, shown.stderr
    run = sdk.attach(json.loads(shown.stdout)["id"])
    assert run.plan == plan
    assert [line.text for line in run.logs(task="worker-0")] == ["['--epochs', '3']"]
    again = here("submit", "p.json")
    assert (again.code, "was submitted before" in again.stderr) == (2, True)


@pytest.mark.parametrize("beside", [["--workers", "2"], ["--root", "x"], ["more"]])
def test_nothing_may_be_given_beside_a_written_plan(write, here, beside: list[str], root: Path) -> None:
    write("train.py", "print(1)")
    here("plan", "train.py", "-o", "p.json")
    shown = here("submit", "p.json", *beside)
    assert (shown.code, "cannot be combined with settings" in shown.stderr) == (2, True)
    assert not root.exists()


def test_a_plan_whose_files_have_changed_is_refused(write, here, root: Path) -> None:
    write("train.py", "print(1)")
    here("plan", "train.py", "-o", "p.json")
    write("train.py", "print(2)")
    shown = here("submit", "p.json")
    assert (shown.code, "Files changed since the plan was made: train.py" in shown.stderr) == (2, True)
    assert not root.exists()


@pytest.mark.parametrize("name", ["train.py", "package.json", "-", "plan"])
def test_a_plan_overwrites_nothing_but_a_plan(write, here, name: str) -> None:
    write("train.py", "print(1)")
    write("package.json", '{"version": 1}')
    shown = here("plan", "train.py", "-o", name)
    assert (shown.code, repr(name) in shown.stderr) == (2, True)
    assert Path("train.py").read_text().strip() == "print(1)"
    assert Path("package.json").read_text().strip() == '{"version": 1}'
    assert not {"-", "plan"} & {path.name for path in Path().iterdir()}


def test_a_plan_may_be_written_again(write, here) -> None:
    write("train.py", "print(1)")
    write("p.json", "")
    assert [here("plan", "train.py", "-o", "p.json").code for _ in range(2)] == [0, 0]


CHANGES = {
    "no JSON": lambda data: "{",
    "another version": lambda data: {**data, "version": 9},
    "a run that climbs": lambda data: {**data, "run_id": "../../x-aaaaaa"},
    "a file that climbs": lambda data: {**data, "files": [["../../etc/passwd", 1, "0" * 64, False]]},
    "an absolute file": lambda data: {**data, "files": [["/etc/passwd", 1, "0" * 64, False]]},
    "files that are none": lambda data: {**data, "files": 3},
    "a row that is no file": lambda data: {**data, "files": [["train.py"]]},
    "a digest that is a path": lambda data: {**data, "digest": "../x"},
    "a root that climbs": lambda data: {**data, "roots": ["../.."]},
    "a folder that climbs": lambda data: {**data, "cwd": "../.."},
    "a written file that climbs": lambda data: {**data, "generated": {"../x.py": "1"}},
    "another cluster": lambda data: {**data, "tasks": ["chief-0", "chief-1"]},
    "a backend that is none": lambda data: {**data, "backend": "nowhere"},
    "no limits": lambda data: {**data, "job": {**data["job"], "limits": {}}},
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_forged_plan_is_refused_before_anything_is_written(write, here, root: Path, name: str) -> None:
    write("train.py", "print(1)")
    here("plan", "train.py", "-o", "p.json")
    changed = CHANGES[name](json.loads(Path("p.json").read_text()))
    Path("p.json").write_text(changed if isinstance(changed, str) else json.dumps(changed))
    shown = here("submit", "p.json")
    assert (shown.code, "Traceback" in shown.stderr) == (2, False), shown.stderr
    assert not root.exists()


def test_a_plan_that_is_not_there_is_a_sentence(here) -> None:
    assert here("submit", "nothing.json").code == 2


def test_an_output_that_cannot_be_written_is_a_sentence(write, here) -> None:
    write("train.py", "print(1)")
    shown = here("plan", "train.py", "-o", "no/such/folder/p.json")
    assert (shown.code, "The output is not a usable path" in shown.stderr) == (2, True)
