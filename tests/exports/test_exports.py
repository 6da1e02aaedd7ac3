"""Runs for experiment trackers: the exported values, and the refusals before anything is written."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from posixpath import normpath

import pytest
from page_runs import HOSTILE, page_run

import sdk
from sdk import exports
from sdk.cli import app
from sdk.exports.exported import ExportedRun
from sdk.exports.to_mlflow import Names

RECORDS = [
    {"step": 10, "metrics": {"loss": 1.5, "acc": None}},
    {"step": 20, "metrics": {"loss": 0.5, "acc": 0.75}},
    {"step": None, "epoch": None, "metrics": {"note": "text", "flag": True}},
    {"step": None, "epoch": None, "metrics": {"extra": 10**400}},
]


@pytest.fixture
def exported(root: Path) -> Callable[..., ExportedRun]:
    def build(*records: dict[str, object], **plan: object) -> ExportedRun:
        run = page_run(root, "digits-aaaaaa", records)
        data = json.loads(Path(run.plan).read_text())
        for name, value in plan.items():
            data["job"][name] = value
        Path(run.plan).write_text(json.dumps(data))
        return exports.read(sdk.attach(run.url))

    return build


def test_every_number_has_its_step_and_time_and_other_values_are_left_out(exported) -> None:
    run = exported(*RECORDS)
    first, second, third = run.points
    assert (first.number, first.step, first.metrics["loss"]) == (0, 10, 1.5) and math.isnan(first.metrics["acc"])
    assert (second.number, second.step, second.metrics) == (1, 20, {"loss": 0.5, "acc": 0.75})
    assert (third.number, third.step, third.metrics) == (2, 2, {"extra": math.inf})
    assert run.final == {"loss": 0.5, "acc": 0.75, "extra": math.inf}
    assert first.time > 1e9 and run.ended is not None and run.label == "digits"


def test_arguments_without_credentials_and_resources_are_params_and_the_end_is_tags(exported) -> None:
    run = exported(args={"lr": 0.1, "layers": [1, 2]})
    assert run.params["lr"] == 0.1 and run.params["layers"] == [1, 2] and run.params["podlift.accelerator"] == "cpu"
    assert run.tags["podlift.state"] == run.state.value and run.tags["podlift.url"] == run.url
    assert "hidden-value" not in str(exported(args=["--token", "hidden-value"], code={"allow_secret": ["args"]}))


@pytest.mark.parametrize(
    "name", [*HOSTILE, "/absolute", "../up", "a//b", "./a", "a/", "a(b)", "x" * 251 + "/..", "/" * 300]
)
def test_every_name_becomes_one_that_mlflow_takes(name: str) -> None:
    taken = Names().of(name)
    assert taken and len(taken) <= 250 and normpath(taken) == taken and not taken.startswith(("/", "."))
    assert all(each.isalnum() or each in "_-. :/" for each in taken)


def test_names_that_mlflow_takes_stay_and_two_names_stay_two() -> None:
    names = Names()
    assert names.of("val/loss a.b:c-d") == "val/loss a.b:c-d"
    assert [names.of(each) for each in ("a(b)", "a[b]", "a_b_", "a(b)")] == ["a_b_", "a_b__2", "a_b__3", "a_b_"]
    assert names.of("x" * 300) != names.of("x" * 299)


def test_all_mistakes_are_named_at_once(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["export", "mlfow", "none-aaaaaa"]) == 2
    said = capsys.readouterr().err
    assert "Received: 'mlfow'. Did you mean 'mlflow'?" in said and "No such run" in said


@pytest.mark.parametrize("name", exports.NAMES)
def test_a_missing_library_is_named_with_the_command_that_installs_it(
    name: str, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page_run(root, "digits-aaaaaa", RECORDS)
    # A folder that W&B has written, in the current folder, is no library.
    (tmp_path / name).mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert app.run(["export", name, "digits-aaaaaa"]) == 2
    assert f"pip install 'podlift[{name}]'" in capsys.readouterr().err


class Broken:
    @staticmethod
    def write(run: ExportedRun, into: str | None) -> str:
        print("a line of the library")
        raise RuntimeError("no answer from https://me:hunter2@tracker.example")


def test_a_trackers_error_names_the_run_and_no_password_and_its_prints_are_no_output(root, monkeypatch, capsys) -> None:
    page_run(root, "digits-aaaaaa", RECORDS)
    monkeypatch.setattr(exports, "check", lambda *names: None)
    monkeypatch.setattr(exports, "import_module", lambda *names: Broken)
    assert app.run(["export", "mlflow", "digits-aaaaaa"]) == 3
    shown = capsys.readouterr()
    assert shown.out == "" and "a line of the library" in shown.err
    assert "MLflow did not take all of digits-aaaaaa" in shown.err and "hunter2" not in shown.err
