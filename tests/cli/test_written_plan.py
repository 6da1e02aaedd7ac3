"""A plan in a file: made here, looked at, and executed later exactly as it is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import sdk


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


@pytest.mark.process
def test_a_written_plan_starts_in_a_root_that_machines_share(project, here, tmp_path: Path) -> None:
    assert here("plan", "train.py", "-o", "p.json", "--root", f"file://{tmp_path}/shared").code == 0
    shown = here("submit", "p.json")
    assert shown.code == 0, shown.stderr
    assert (tmp_path / "shared" / "runs").is_dir()


@pytest.fixture
def written(project, here) -> Path:
    """The plan of a program."""
    assert here("plan", "train.py", "-o", "p.json").code == 0
    return Path("p.json")


@pytest.mark.parametrize("beside", [["--workers", "2"], ["--root", "x"], ["more"]])
def test_nothing_may_be_given_beside_a_written_plan(written: Path, here, beside: list[str], root: Path) -> None:
    shown = here("submit", "p.json", *beside)
    assert (shown.code, "cannot be combined with settings" in shown.stderr) == (2, True)
    assert not root.exists()


def test_a_plan_with_changed_files_is_refused(written: Path, write, here, root: Path) -> None:
    write("train.py", "print(2)")
    shown = here("submit", "p.json")
    assert (shown.code, "Files changed since the plan was made: train.py" in shown.stderr) == (2, True)
    assert not root.exists()


@pytest.mark.parametrize("name", ["train.py", "package.json", "-", "plan"])
def test_a_plan_overwrites_nothing_but_a_plan(project, here, name: str) -> None:
    project("package.json", '{"version": 1}')
    shown = here("plan", "train.py", "-o", name)
    assert (shown.code, repr(name) in shown.stderr) == (2, True)
    kept = {path.name: path.read_text().strip() for path in Path().iterdir()}
    assert kept == {"train.py": "print(1)", "package.json": '{"version": 1}'}


def test_a_plan_may_be_written_again_also_into_an_empty_file(written: Path, here) -> None:
    for text in (written.read_text(), ""):
        written.write_text(text)
        assert here("plan", "train.py", "-o", "p.json").code == 0


CHANGES = {
    "no JSON": lambda data: "{",
    "another version": lambda data: {**data, "version": 9},
    "a run that climbs": lambda data: {**data, "run_id": "../../x-aaaaaa"},
    "files that are none": lambda data: {**data, "files": 3},
    "a row that is no file": lambda data: {**data, "files": [["train.py"]]},
    "another cluster": lambda data: {**data, "tasks": ["chief-0", "chief-1"]},
    "a backend that is none": lambda data: {**data, "backend": "nowhere"},
    "no limits": lambda data: {**data, "job": {**data["job"], "limits": {}}},
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_forged_plan_is_refused_before_anything_is_written(written: Path, here, root: Path, name: str) -> None:
    changed = CHANGES[name](json.loads(written.read_text()))
    written.write_text(changed if isinstance(changed, str) else json.dumps(changed))
    shown = here("submit", "p.json")
    assert (shown.code, "Traceback" in shown.stderr) == (2, False), shown.stderr
    assert not root.exists()


def test_a_plan_that_is_not_there_and_an_output_that_cannot_be_written_are_sentences(written: Path, here) -> None:
    assert here("submit", "nothing.json").code == 2
    shown = here("plan", "train.py", "-o", "no/such/folder/p.json")
    assert (shown.code, "The output is not a usable path" in shown.stderr) == (2, True)
