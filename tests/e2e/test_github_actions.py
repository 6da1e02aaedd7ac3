"""The workflow that users copy: its commands, word for word, in a copy of its project, with nothing to download."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from support import LONG_LIMIT_S as LIMIT_S
from support import REPO

pytestmark = [pytest.mark.tensorflow, pytest.mark.full]

EXAMPLES = REPO / "examples"


def steps() -> list[dict]:
    workflow = yaml.safe_load((EXAMPLES / "github-actions.yml").read_text())
    (job,) = workflow["jobs"].values()
    return job["steps"]


@pytest.fixture
def shell(fresh, wheel: Path, tmp_path: Path):
    """Run a step as GitHub does, in the project, as a user who has nothing but podlift installed."""
    project, home = tmp_path / "project", tmp_path / "home"
    shutil.copytree(EXAMPLES / "ci-project", project, ignore=shutil.ignore_patterns("__pycache__"))
    home.mkdir()
    (project / "vendor").mkdir()
    shutil.copy(wheel, project / "vendor")
    # With PIP_NO_INDEX an installation that still needs anything fails.
    env = {"PATH": f"{fresh.bin}:{os.environ['PATH']}", "HOME": str(home), "PIP_NO_INDEX": "1", "CI": "true"}

    def run(commands: str) -> subprocess.CompletedProcess[str]:
        script = tmp_path / "step.sh"
        script.write_text(commands)
        return subprocess.run(
            ["bash", "-e", str(script)], cwd=project, env=env, capture_output=True, text=True, timeout=LIMIT_S
        )

    return run


def test_every_command_of_the_workflow_succeeds_in_order(shell) -> None:
    shown = {}
    for step in steps():
        if "run" in step:
            done = shell(step["run"])
            assert done.returncode == 0, f"{step['run']}\n{done.stdout}\n{done.stderr}"
            shown[step["run"].split()[1]] = done.stdout
    submitted = json.loads(shown["submit"])
    assert (submitted["state"], submitted["exit_code"]) == ("SUCCEEDED", 0)
    assert submitted["metrics"]["val_loss"] is not None
    assert "2 x cpu: chief-0, worker-0" in shown["plan"]
    assert "1 passed" in shown["-m"]


def test_without_the_wheel_nothing_is_installed_in_its_place(shell, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "project" / "vendor")
    (install,) = (step["run"] for step in steps() if "pip install" in step.get("run", ""))
    done = shell(install)
    assert done.returncode != 0
    assert "vendor/podlift-*.whl" in done.stderr


def test_the_workflow_shows_both_styles_and_needs_no_credentials() -> None:
    text = (EXAMPLES / "github-actions.yml").read_text()
    assert "podlift submit train.py --workers 2 --max-steps 20" in text
    assert "podlift_run(" in (EXAMPLES / "ci-project" / "tests" / "test_training.py").read_text()
    for word in ("secrets.", "GOOGLE", "gcloud", "auth@"):
        assert word not in text
