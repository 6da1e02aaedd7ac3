"""What every backend owes, on a real cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import sdk
from benchmarks.real_ray import RayCluster
from sdk.testing.backend import BackendContract

pytestmark = [pytest.mark.process, pytest.mark.full]


class TestRay(BackendContract):
    name = "ray"

    @pytest.fixture
    def where(self, cluster: RayCluster, tmp_path: Path) -> dict[str, Any]:
        return {"backend": sdk.Ray(address=cluster.address), "root": tmp_path / "shared"}
