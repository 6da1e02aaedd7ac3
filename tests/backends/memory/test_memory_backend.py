"""A backend with a new option is one folder and one row: no other file knows it, and everything offers its option."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from memory_backend import Memory, MemoryBackend, register
from support import REPO

import sdk
from sdk import backends
from sdk.job import option_classes
from sdk.testing.backend import BackendContract

pytestmark = pytest.mark.process
# Registers the backend first, as a program with its own backend does, and then is the command.
COMMAND = "import sys, memory_backend as m; m.register(); from sdk.cli import app; sys.exit(app.run(sys.argv[1:]))"
PAGE = """
import importlib.machinery, importlib.util, sys, memory_backend
memory_backend.register()
sys.path.insert(0, "scripts")
loader = importlib.machinery.SourceFileLoader("reference", "scripts/reference")
reference = importlib.util.module_from_spec(importlib.util.spec_from_loader("reference", loader))
loader.exec_module(reference)
print(next(text for path, text in reference.made().items() if path.name == "settings.md"))
"""


@pytest.fixture(autouse=True, scope="module")
def _memory() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backends, "_registered", {})
        patch.setattr(option_classes, "LOADERS", {**option_classes.LOADERS})
        register()
        yield


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "train.py").write_text("print('here')")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def shown(program: str, *words: str, cwd: Path = REPO) -> str:
    env = {**os.environ, "PYTHONPATH": f"{REPO}:{Path(__file__).parent}", "COLUMNS": "100"}
    command = [sys.executable, "-c", program, *words]
    return subprocess.run(command, cwd=cwd, env=env, stdout=subprocess.PIPE, text=True, timeout=120, check=True).stdout


class TestMemory(BackendContract):
    name = "memory"

    @pytest.fixture
    def where(self, tmp_path: Path) -> dict[str, Any]:
        return {"backend": Memory(shelf="contract"), "root": tmp_path / "root"}


def test_a_run_has_the_option_in_its_plan_its_request_and_its_record(project: Path) -> None:
    run = sdk.submit("train.py", backend="memory", memory_shelf="top", root=project / "root")
    assert run.wait(60).state is sdk.State.SUCCEEDED
    assert MemoryBackend.shelves["top"] == [run.id]
    assert sdk.attach(run.url).plan.target == Memory(shelf="top")
    assert "shelf" in str(run.plan) and "top" in str(run.plan)
    assert sdk.Plan.from_json(run.plan.to_json(), "plan.json") == run.plan


def test_the_projects_file_and_a_variable_set_the_option(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "podlift.toml").write_text('backend = "memory"\n[memory]\nshelf = "written"\n')
    assert sdk.plan("train.py").target == Memory(shelf="written")
    monkeypatch.setenv("PODLIFT_MEMORY_SHELF", "said")
    assert sdk.plan("train.py").target == Memory(shelf="said")


def test_mistakes_in_the_option_are_named_by_the_setting(project: Path) -> None:
    with pytest.raises(sdk.InputError, match=r"memory_shelf is not set\. Nearest: memory_shelf='top'"):
        sdk.plan("train.py", backend="memory")
    with pytest.raises(sdk.InputError, match="memory_shelf: "):
        sdk.plan("train.py", backend="memory", memory_shelf=3)
    with pytest.raises(sdk.InputError, match="Did you mean 'memory_shelf'"):
        sdk.plan("train.py", backend="memory", memory_shelve="top")


def test_the_command_has_the_option_in_its_help_its_settings_and_its_plan(project: Path) -> None:
    text = shown(COMMAND, "submit", "--help-all")
    assert "Memory" in text and "--memory-shelf SHELF" in text and "Name of the shelf that remembers the run." in text
    assert "local, vertex, ray, kubernetes or memory" in shown(COMMAND, "plan", "--help")
    settings = json.loads(shown(COMMAND, "config", "--memory-shelf", "top", "--json", cwd=project))
    assert {"name": "memory_shelf", "value": "top", "origin": "argument"} in settings["settings"]
    words = ("plan", "train.py", "--backend", "memory", "--memory-shelf", "top", "--json")
    assert json.loads(shown(COMMAND, *words, cwd=project))["backend_options"] == {"shelf": "top"}


def test_the_services_are_found_by_the_verbs_that_need_them(project: Path) -> None:
    proposed = shown(COMMAND, "init", "memory", "--dry-run", cwd=project)
    assert proposed == 'backend = "memory"\n\n[memory]\nshelf = "top"\n'
    assert "top is free" in shown(COMMAND, "doctor", "--backend", "memory", "--memory-shelf", "top", cwd=project)


def test_the_page_of_the_settings_has_a_row_for_the_option() -> None:
    row = "| `memory_shelf` | <code>str &#124; None</code> | `None` | Name of the shelf that remembers the run. |"
    assert row in shown(PAGE)
