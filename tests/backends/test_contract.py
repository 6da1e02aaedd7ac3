from collections.abc import Iterator
from pathlib import Path

import pytest

from sdk import backends
from sdk.testing import fake_backend
from sdk.testing.backend import BackendContract
from sdk.testing.fake_backend import FakeBackend

pytestmark = pytest.mark.process


class TestLocal(BackendContract):
    name = "local"


@pytest.fixture(autouse=True, scope="module")
def _fake() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backends, "_registered", {})
        backends.register("fake", FakeBackend)
        yield


class TestFake(BackendContract):
    name = "fake"


def test_the_smallest_backend_stays_small() -> None:
    assert len(Path(fake_backend.__file__).read_text().splitlines()) <= 150
