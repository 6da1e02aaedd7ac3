"""A cluster for all tests of a session, and a project for them."""

from __future__ import annotations

import pytest
from ray_clusters import MISSING, PYTHON, cluster
from support import PROGRAMS

__all__ = ["MISSING", "PYTHON", "cluster"]
DIGITS = "digits_weights:main"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch) -> None:
    """Copies of runs stay in the test's folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("RAY_API_SERVER_ADDRESS", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def digits(write) -> None:
    """Be in a project with the program DIGITS."""
    write("digits_weights.py", (PROGRAMS / "digits_weights.py").read_text())
