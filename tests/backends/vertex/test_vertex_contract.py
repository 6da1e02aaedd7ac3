"""The contract of every backend, for Vertex AI too: the real client against the emulator with jobs that really run."""

from typing import Any

import pytest

from sdk.testing.backend import BackendContract


class TestVertex(BackendContract):
    name = "vertex"

    @pytest.fixture
    def where(self, cloud) -> dict[str, Any]:
        return {"backend": cloud.backend()}

    @pytest.mark.full
    def test_what_a_program_returns_and_leaves_comes_back_and_following_ends_with_it(
        self, where, submit, tmp_path
    ) -> None:
        super().test_what_a_program_returns_and_leaves_comes_back_and_following_ends_with_it(where, submit, tmp_path)
