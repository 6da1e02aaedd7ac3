"""A gate that is rehearsed and repeated on this machine, and tried on the champion before a run."""

from __future__ import annotations

import json
import shutil
import textwrap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from registered_models import register
from support import LIMIT_S, has_ended, holds

import sdk
from sdk.model_registry import evidence
from sdk.planning import trial

pytestmark = [pytest.mark.process]

SETTINGS = """
    model = "digits"
    [inputs]
    test = "test.csv"
    [gate]
    evaluate = "quality:measure"
    data = "test"
    metric = "accuracy"
    guards = ["accuracy >= 0.4"]
"""
QUALITY = """
    from pathlib import Path
    def measure(model, data):
        with open(Path(data).parent.parent / "calls", "a") as calls:
            calls.write("x")
        print("measures", Path(data).read_text())
        return {"accuracy": float(Path(model, "weights").read_text())}
"""
STARTS_ANOTHER = """
import subprocess, sys
from pathlib import Path
def measure(model, data):
    Path(data).parent.parent.joinpath("pid").write_text(str(subprocess.Popen(["sleep", "600"]).pid))
"""
PROGRAM = """
    import sdk
    from pathlib import Path
    Path(sdk.context().dirs.model, "weights").write_text("0.7")
"""


@pytest.fixture
def project(write: Callable[..., Path]) -> Path:
    """A project with a gate. Its function counts its calls in a file beside it."""
    write("quality.py", QUALITY)
    write("train.py", PROGRAM)
    write("test.csv", "rows")
    return write("podlift.toml", SETTINGS).parent


def weights(root: Path, *texts: str, promote: bool = False) -> None:
    for text in texts:
        register(root, "digits", {"weights": text.encode()}, promote=promote)


def test_a_rehearsal_shows_the_decision_and_changes_nothing(project: Path, root: Path, here: Callable) -> None:
    weights(root, "0.5", promote=True)
    weights(root, "0.6", "0.3")
    better, worse = here("models", "evaluate", "digits", "2"), here("models", "evaluate", "digits", "3")
    assert (better.code, worse.code) == (0, 1)
    lines = better.stdout.splitlines()
    assert lines[0] == "gate       promote: accuracy is 0.6, the champion's 0.5: better by 0.1"
    assert lines[1].startswith("compared   with version 1, then the champion, by quality:measure, ")
    assert lines[3] == "guard      holds: accuracy >= 0.4 (it is 0.6)"
    assert lines[5].split() == ["accuracy", "0.6000", "0.5000", "+0.1000"]
    assert "nothing was written or promoted. Next: podlift models evaluate digits 2 --promote" in better.stderr
    itself = here("models", "evaluate", "digits", "champion", "--promote")
    assert itself.stderr == "digits: version 1 is the champion already, and was compared with itself.\n"
    worse_by = "gate       keep: accuracy is 0.3, the champion's 0.5: worse by 0.2; and a guard does not hold: "
    assert worse.stdout.startswith(worse_by)
    model = sdk.models()["digits"]
    assert (model.champion().number, [len(version.evidence()) for version in model.versions()]) == (1, [1, 0, 0])


def test_a_judgement_that_failed_is_repeated_once_the_function_is_mended(project, root: Path, write, here) -> None:
    weights(root, "0.5", promote=True)
    weights(root, "0.6")
    write("quality.py", "def measure(model, data):\n    return open(model + '/model.keras')\n")
    failed = here("models", "evaluate", "digits", "2", "--promote")
    assert (failed.code, sdk.models()["digits"].champion().number) == (1, 1)
    holds(failed.stdout, "failed: quality.py:2: FileNotFoundError: ", "The folder of the model has weights.\n")
    write("quality.py", QUALITY)
    assert json.loads(here("models", "evaluate", "digits", "2", "--promote", "--json").stdout)["outcome"] == "promote"
    model = sdk.models()["digits"]
    assert [each.outcome for each in model.champion().evidence()] == ["keep", "promote"]
    assert model.history()[-1].note == "accuracy is 0.6, the champion's 0.5: better by 0.1"
    model.rollback()
    of_a_clock_ahead = replace(model.version(2).evidence()[0], id="0" * 16, time=4e9)
    evidence.write(model.store, of_a_clock_ahead)
    assert (model.evaluate(2, promote=True).outcome, model.champion().number) == ("promote", 2), "after a rollback, too"


def test_away_from_its_project_a_version_is_judged_by_the_gate_of_its_run(
    project: Path, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, here: Callable
) -> None:
    sdk.submit("train.py").result(LIMIT_S)
    weights(root, "0.9")
    other = tmp_path / "other"
    shutil.copytree(project, other)
    (other / "podlift.toml").write_text(textwrap.dedent(SETTINGS).replace('model = "digits"', 'entry = "train.py"'))
    (other / "quality.py").write_text("def measure(model, data):\n    return {'accuracy': 99.0}\n")
    monkeypatch.chdir(other)
    Path(project, "quality.py").unlink()
    shown = here("models", "evaluate", "digits", "1")
    assert shown.stdout.startswith("gate       keep: accuracy is 0.7, as the champion's"), shown.stderr
    gone = here("models", "evaluate", "digits", "2")
    none = "has no gate: the settings of this folder name none for it, and its run digits-aaaaab was removed."
    assert (gone.code, none in gone.stderr) == (2, True)


def test_a_plan_calls_the_function_once_per_champion_and_names_the_failing_line(project, root: Path, write) -> None:
    def about_gate(plan: sdk.Plan) -> list[tuple[str, str]]:
        return [(each.level, each.message) for each in plan.findings if "quality:measure" in each.message]

    assert about_gate(sdk.plan("train.py")) == [], "no champion"
    weights(root, "0.5", promote=True)
    sound = ("note", "quality:measure measured version 1 of 'digits', the champion: accuracy 0.5.")
    assert [about_gate(sdk.plan("train.py")) for _ in range(2)] == [[sound], [sound]]
    assert (project.parent / "calls").read_text() == "x", "the same code, champion and data"
    write("quality.py", QUALITY.replace('"weights"', '"model.keras"'))
    ((level, message),) = about_gate(sdk.plan("train.py"))
    assert level == "warning"
    assert "fails on version 1 of 'digits', the champion: quality.py:7: FileNotFoundError: " in message
    assert message.endswith("has weights. Next: mend it, and podlift models evaluate digits 1.")
    write("quality.py", QUALITY.replace('"accuracy"', '"acuracy"'))
    ((level, message),) = about_gate(sdk.plan("train.py"))
    assert (level, "it returned no 'accuracy', but acuracy." in message) == ("warning", True)
    assert sdk.models()["digits"].version(1).evidence() == []


def test_a_plan_does_not_wait_long_for_the_function(project: Path, root: Path, write, here, monkeypatch) -> None:
    weights(root, "0.5", promote=True)
    write("quality.py", "import time\ndef measure(model, data):\n    time.sleep(600)\n")
    monkeypatch.setattr(trial, "LIMIT_S", 1.0)
    shown = here("plan", "train.py", "-v")
    assert "was not tried on version 1 of 'digits', the champion: Its process was not done after 1 s" in shown.stdout
    about = "version 1 of 'digits', the champion"
    assert shown.stderr == f"podlift: the function quality:measure of the gate is tried on {about}, for at most 1 s\n"


def test_processes_that_the_function_started_end_with_it_and_it_reads_no_input(project, root, write, podlift) -> None:
    weights(root, "0.5", promote=True)
    noisy = f"{STARTS_ANOTHER}    print('noise', file=sys.stderr)\n"
    write("quality.py", f"{noisy}    return {{'accuracy': 1.0 + len(sys.stdin.read())}}\n")
    for words in (["plan", "train.py"], ["models", "evaluate", "digits", "1"]):
        shown = podlift(*words, shell="< test.csv")
        assert "the champion: accuracy 1." in shown.stdout or "accuracy is 1," in shown.stdout, shown.stderr
        assert has_ended(int((project.parent / "pid").read_text())), words
        assert "noise" not in shown.stderr, words
    write("quality.py", f"{noisy}    return {{}}\n")
    assert "noise\n" in podlift("models", "evaluate", "digits", "1").stderr, "it fails"
