"""A real Ray cluster on this machine, for the tests of a session that need one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support import REPO

from benchmarks.real_ray import RayCluster

PYTHON = REPO / ".venvs" / "ray" / "bin" / "python"
MISSING = "" if (PYTHON.parent / "ray").exists() else "no environment with Ray: scripts/test makes it (make_ray_venv)"


@pytest.fixture(scope="session")
def cluster() -> Iterator[RayCluster]:
    """A cluster that starts with the first test that needs it."""
    if MISSING:
        pytest.skip(MISSING)
    found = RayCluster(PYTHON)
    yield found
    found.close()
