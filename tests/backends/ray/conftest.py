"""A cluster for all tests of a session, which starts with the first test that needs it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import REPO

from benchmarks.real_ray import RayCluster

PYTHON = REPO / ".venvs" / "ray" / "bin" / "python"
MISSING = "" if (PYTHON.parent / "ray").exists() else "no environment with Ray: scripts/test makes it (make_ray_venv)"


DIGITS = "digits_weights:main"


@pytest.fixture(scope="session")
def cluster() -> Iterator[RayCluster]:
    if MISSING:
        pytest.skip(MISSING)
    found = RayCluster(PYTHON)
    yield found
    found.close()


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch) -> None:
    """Copies of runs stay in the test's folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("RAY_API_SERVER_ADDRESS", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def digits(tmp_path: Path, monkeypatch) -> None:
    """Be in a project with the program DIGITS."""
    (tmp_path / "project").mkdir()
    shutil.copy(REPO / "tests" / "programs" / "digits_weights.py", tmp_path / "project")
    monkeypatch.chdir(tmp_path / "project")
