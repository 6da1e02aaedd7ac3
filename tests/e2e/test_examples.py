"""Every example, as a user runs it."""

from __future__ import annotations

import ast
import json
import linecache
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from documents import examples, missing, terminal
from support import LONG_LIMIT_S, REPO

import sdk

pytestmark = pytest.mark.spread

EXAMPLES = REPO / "examples"
GUIDE = REPO / "docs" / "how-to" / "models.md"


def environ(root: Path) -> dict[str, str]:
    """Without the settings of tests: with theirs, no run would be restarted after a preemption."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PODLIFT_")}
    path = f"{Path(sys.executable).parent}:{kept['PATH']}"
    return {**kept, "PYTHONPATH": str(REPO), "PODLIFT_ROOT": str(root), "PATH": path}


def shown_by(command: list[str], root: Path, folder: Path = EXAMPLES, code: int = 0) -> str:
    done = subprocess.run(command, capture_output=True, text=True, env=environ(root), cwd=folder, timeout=LONG_LIMIT_S)
    assert done.returncode == code, done.stderr
    return done.stdout


@pytest.mark.full
@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("name", "output"),
    [
        ("02_emulated_cloud.py", "{'attempt': 2} 2 attempts"),
        ("03_resume.py", "State.CANCELLED at step "),
        ("06_schedule.py", "T03:00:00+0"),
        ("07_sweep.py", "best: {'rate': "),
    ],
)
def test_an_example_prints_the_output_that_it_promises(name: str, output: str, tmp_path: Path) -> None:
    assert output in shown_by([sys.executable, name], tmp_path)


@pytest.mark.full
@pytest.mark.tensorflow
def test_the_first_example_trains_on_two_workers_with_unchanged_fit(tmp_path: Path) -> None:
    promised = ast.literal_eval((EXAMPLES / "01_local.py").read_text().partition("# {")[2].partition("}")[0].join("{}"))
    printed = ast.literal_eval(shown_by([sys.executable, "01_local.py"], tmp_path).splitlines()[-1])
    assert printed == pytest.approx(promised, abs=0.05)
    (run,) = (sdk.attach(found.url) for found in sdk.runs(root=tmp_path))
    assert [record["epoch"] for record in run.metrics()] == [1, 2, 3]
    for task in run.plan.tasks:
        log = "\n".join(line.text for line in run.logs(task=task))
        assert "Started server with target" in log, "of the multi-worker strategy"
        assert "keras-multi-worker" in log, "the log names the cure"
    timings = run.status().timings
    assert 0 < timings["started"] < timings["entry"] < timings["first_step"] < timings["finished"]


@pytest.mark.full
@pytest.mark.process
def test_the_notebook_gets_the_value_of_its_function(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(EXAMPLES)
    monkeypatch.setenv("PODLIFT_ROOT", str(tmp_path))
    monkeypatch.setitem(sys.modules, "__main__", type(sys)("__main__"))
    cells = json.loads((EXAMPLES / "04_notebook.ipynb").read_text())["cells"]
    for number, cell in enumerate(cell for cell in cells if cell["cell_type"] == "code"):
        # As IPython does: the text of a cell is kept under a name that is not a file.
        file, text = f"/tmp/ipykernel_1/{number}.py", "".join(cell["source"])
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
        exec(compile(text, file, "exec"), sys.modules["__main__"].__dict__)
    assert "'weight': 0.98" in capsys.readouterr().out


@pytest.mark.tensorflow
@pytest.mark.process
@pytest.mark.full
def test_the_project_with_a_gate_promotes_its_first_model_and_compares_the_second(tmp_path: Path, monkeypatch) -> None:
    project = tmp_path / "retrain"
    shutil.copytree(EXAMPLES / "retrain", project)
    (_copied, *commands) = next(each for each in examples(GUIDE) if "make_data.py" in each.text).commands()
    for command, printed in commands:
        code, screen = terminal.run(["timeout", f"{LONG_LIMIT_S:g}", *command.split()], project, environ(tmp_path))
        output = "\n".join(terminal.CODE.sub("", line) for line in screen.lines)
        assert (code, missing(printed or ["..."], output)) == (0, []), output
    (first,), (second,) = (sdk.models(root=tmp_path)["digits"].version(number).evidence() for number in (1, 2))
    assert (first.outcome, first.metrics.keys()) == ("promote", {"accuracy", "accuracy[eights]", "loss"})
    assert {guard.holds for guard in second.guards} == {True}
    assert second.outcome == "promote"
    shown = shown_by([sys.executable, "-m", "sdk", "models", "evaluate", "digits", "1"], tmp_path, project, code=1)
    assert shown.startswith("gate       keep: accuracy is ")
    assert "; and a guard does not hold: loss <= champion * 1.05 " in shown
    (row,) = [line.split() for line in shown.splitlines() if line.split()[:1] == ["accuracy"]]
    assert row[1:3] == [f"{each.metrics['accuracy']:.4f}" for each in (first, second)], "as at the end of the runs"
    monkeypatch.setenv("PODLIFT_ROOT", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (page,) = [each.text for each in examples(GUIDE) if each.kind == "python" and "champion().download" in each.text]
    done: dict[str, Any] = {}
    exec(page, done)
    assert done["model"].count_params() == 64 * 32 + 32 + 32 * 10 + 10


@pytest.mark.process
def test_the_guide_quotes_the_project_with_a_gate() -> None:
    guide = GUIDE.read_text()
    settings = (EXAMPLES / "retrain" / "podlift.toml").read_text()
    program = (EXAMPLES / "retrain" / "quality.py").read_text().partition('"""\n\n')[2]
    assert f"```toml\n{settings}```" in guide
    assert f"```python\n{program}```" in guide


@pytest.mark.process
def test_the_own_backend_runs(tmp_path: Path) -> None:
    assert "State.SUCCEEDED own-" in shown_by([sys.executable, "examples/05_own_backend.py"], tmp_path, REPO)


@pytest.mark.process
@pytest.mark.full
def test_the_own_backend_fulfils_the_contract(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "examples/05_own_backend.py"]
    assert " passed" in shown_by(command, tmp_path, REPO)


@pytest.mark.process
def test_the_readme_shows_the_first_example() -> None:
    code = (EXAMPLES / "01_local.py").read_text().split('"""\n\n')[1]
    assert code in (REPO / "README.md").read_text()
