"""A separate environment with podlift from a built wheel, as a user has it: not this checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import LIMIT_S, REPO, Shown


def pip(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", *words], check=True, timeout=LIMIT_S)


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """podlift's wheel, built from this checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    # A build leaves its folders where the source lies: a copy of it, here.
    source = folder / "source"
    shutil.copytree(REPO / "sdk", source / "sdk", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(REPO / name, source / name)
    pip("wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(folder), str(source))
    (built,) = folder.glob("podlift-*.whl")
    return built


class Fresh:
    """A fresh virtual environment: `fresh.podlift("submit", "train.py")`, `fresh.python("script.py")`."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        venv.create(folder, with_pip=False, symlinks=True)
        self.bin = folder / "bin"
        (self.site,) = folder.glob("lib/python*/site-packages")
        # Everything podlift needs is installed where this runs; a plain path brings none of that place's .pth files, so the
        # checkout that is installed there in editable mode stays out of sight.
        (self.site / "base.pth").write_text(sysconfig.get_path("purelib") + "\n")
        own = ("--python", str(self.bin / "python"), "--disable-pip-version-check")
        pip(*own, "install", "-q", "--no-deps", "--no-index", str(wheel))

    def python(self, *words: str, cwd: Path | None = None, **variables: str) -> Shown:
        return self._run([str(self.bin / "python"), *words], cwd, variables)

    def podlift(self, *words: str, cwd: Path | None = None, **variables: str) -> Shown:
        return self._run([str(self.bin / "podlift"), *words], cwd, variables)

    def _run(self, command: list[str], cwd: Path | None, variables: dict[str, str]) -> Shown:
        kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
        env = {**kept, "PATH": f"{self.bin}:{kept['PATH']}", **variables}
        done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=LIMIT_S)
        return Shown(done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="session")
def _environment(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Fresh:
    return Fresh(tmp_path_factory.mktemp("fresh") / "environment", wheel)


@pytest.fixture
def fresh(_environment: Fresh) -> Iterator[Fresh]:
    """Return a fresh environment that holds the wheel: packages that a test adds are removed after the test."""
    before = set(_environment.site.iterdir())
    yield _environment
    for added in set(_environment.site.iterdir()) - before:
        added.unlink()
