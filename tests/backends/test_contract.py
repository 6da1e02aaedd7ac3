from pathlib import Path

import pytest

from sdk import backends
from sdk.testing import fake_backend
from sdk.testing.backend import BackendContract
from sdk.testing.fake_backend import FakeBackend


class TestLocal(BackendContract):
    name = "local"


@pytest.fixture(autouse=True, scope="module")
def _fake() -> None:
    backends.register("fake", FakeBackend)


class TestFake(BackendContract):
    name = "fake"


def test_the_smallest_backend_stays_small() -> None:
    assert len(Path(fake_backend.__file__).read_text().splitlines()) <= 150
