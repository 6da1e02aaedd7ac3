"""What every backend owes, by the Kubernetes cluster that the settings of `scripts/test --cluster` name."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from sdk.testing.backend import BackendContract

# The settings of the caller, which the other tests must not see.
_SETTINGS: dict[str, str] = json.loads(os.environ["CLOUD_SETTINGS"])
_ROOT = os.environ.get("CLUSTER_ROOT", "")


@pytest.fixture(scope="session", autouse=True)
def _complete() -> None:
    given = {"PODLIFT_KUBERNETES_IMAGE": _SETTINGS.get("PODLIFT_KUBERNETES_IMAGE"), "PODLIFT_ROOT": _ROOT}
    if missing := [name for name, value in given.items() if not value]:
        pytest.exit(f"Not configured: {', '.join(missing)}. Nothing was started. Next: set them, and repeat.", 2)


class TestCluster(BackendContract):
    name = "kubernetes"
    # A cluster may add nodes first.
    limit_s = 1800.0

    @pytest.fixture
    def where(self, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
        for name, value in _SETTINGS.items():
            monkeypatch.setenv(name, value)
        return {"backend": "kubernetes", "root": _ROOT, "timeout": "20m"}
