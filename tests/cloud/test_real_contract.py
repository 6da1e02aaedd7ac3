"""What every backend owes, by the real service that the settings of `scripts/test --cloud` or `--cluster` name."""

from __future__ import annotations

import json
import os
from typing import Any, ClassVar

import pytest

from sdk.testing.backend import BackendContract

# The settings of the caller, which the other tests must not see.
_SETTINGS: dict[str, str] = json.loads(os.environ["REAL_SETTINGS"])


@pytest.fixture(scope="class", autouse=True)
def _complete(request: pytest.FixtureRequest) -> None:
    if missing := [name for name in request.cls.needed if not _SETTINGS.get(name)]:
        pytest.exit(f"Not configured: {', '.join(missing)}. Nothing was started. Next: set them, and repeat.", 2)


class RealContract(BackendContract):
    needed: ClassVar[tuple[str, ...]]
    # A real job waits minutes for its machines.
    limit_s = 1800.0

    @pytest.fixture(autouse=True)
    def _settings(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, value in _SETTINGS.items():
            monkeypatch.setenv(name, value)


class TestCloud(RealContract):
    name = "vertex"
    needed = ("PODLIFT_VERTEX_PROJECT", "PODLIFT_VERTEX_BUCKET", "PODLIFT_VERTEX_IMAGE")

    @pytest.fixture
    def where(self) -> dict[str, Any]:
        bucket = _SETTINGS["PODLIFT_VERTEX_BUCKET"].removeprefix("gs://").partition("/")[0]
        return {"backend": "vertex", "root": f"gs://{bucket}/podlift-tests", "timeout": "20m", "max_cost_usd": 1.0}


class TestCluster(RealContract):
    name = "kubernetes"
    needed = ("PODLIFT_KUBERNETES_IMAGE", "PODLIFT_ROOT")

    @pytest.fixture
    def where(self) -> dict[str, Any]:
        return {"backend": "kubernetes", "root": _SETTINGS["PODLIFT_ROOT"], "timeout": "20m"}
