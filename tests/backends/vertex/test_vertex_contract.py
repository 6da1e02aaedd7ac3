"""What every backend owes, by Vertex AI too: the real client against the emulator, whose jobs really run."""

from typing import Any

import pytest

from sdk.testing.backend import BackendContract
from sdk.testing.vertex import Cloud


class TestVertex(BackendContract):
    name = "vertex"

    @pytest.fixture
    def where(self, podlift_vertex: Cloud) -> dict[str, Any]:
        return {"backend": podlift_vertex.backend()}
