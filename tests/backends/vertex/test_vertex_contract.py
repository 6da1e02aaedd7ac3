"""The contract of every backend, for Vertex AI too: the real client against the emulator with jobs that really run."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sdk
from sdk.testing.backend import BackendContract
from sdk.testing.vertex import Cloud


class TestVertex(BackendContract):
    name = "vertex"

    @pytest.fixture
    def where(self, podlift_vertex: Cloud) -> dict[str, Any]:
        return {"backend": podlift_vertex.backend()}

    @pytest.mark.full
    def test_what_a_program_returns_and_leaves_comes_back_and_following_ends_with_it(
        self, where: dict[str, Any], submit: Callable[..., sdk.Run], tmp_path: Path
    ) -> None:
        super().test_what_a_program_returns_and_leaves_comes_back_and_following_ends_with_it(where, submit, tmp_path)
