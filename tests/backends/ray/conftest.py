"""A cluster for all tests of a session, and a project for them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from ray_clusters import MISSING, PYTHON, cluster
from support import REPO

__all__ = ["MISSING", "PYTHON", "cluster"]
DIGITS = "digits_weights:main"


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
