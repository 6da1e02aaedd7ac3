"""What all tests share: an environment without settings, a root and a project folder of their own."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.startswith("PODLIFT_") or name in ("TF_CONFIG", "CLUSTER_SPEC"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PODLIFT_ROOT", str(tmp_path / "root"))
    # Whoever tests restarts asks for them.
    monkeypatch.setenv("PODLIFT_INFRASTRUCTURE", "0")
    monkeypatch.setenv("PODLIFT_PREEMPTION", "0")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The root of runs, which nobody has made yet."""
    return tmp_path / "root"


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Write files into a project folder, which is the current folder: `write("train.py", "print(1)")`."""
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)

    def writer(path: str, text: str = "") -> Path:
        target = project / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(textwrap.dedent(text))
        return target

    return writer
