"""What every backend owes, by the real Vertex AI or whatever the settings of `scripts/test --cloud` name."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from sdk.testing.backend import BackendContract

# The settings of the caller, which the other tests must not see.
_SETTINGS: dict[str, str] = json.loads(os.environ["CLOUD_SETTINGS"])
_NEEDED = ("PODLIFT_VERTEX_PROJECT", "PODLIFT_VERTEX_BUCKET", "PODLIFT_VERTEX_IMAGE")


@pytest.fixture(scope="session", autouse=True)
def _complete() -> None:
    if missing := [name for name in _NEEDED if not _SETTINGS.get(name)]:
        pytest.exit(f"Not configured: {', '.join(missing)}. Nothing was started. Next: set them, and repeat.", 2)


class TestCloud(BackendContract):
    name = "vertex"
    # A real job waits minutes for its machines.
    limit_s = 1800.0

    @pytest.fixture
    def where(self, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
        for name, value in _SETTINGS.items():
            monkeypatch.setenv(name, value)
        bucket = _SETTINGS["PODLIFT_VERTEX_BUCKET"].removeprefix("gs://").partition("/")[0]
        return {"backend": "vertex", "root": f"gs://{bucket}/podlift-tests", "timeout": "20m", "max_cost_usd": 1.0}
