"""An emulator with scripts of the test as containers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from served import Served, serving
from stored import Stored
from stored import serving as serving_buckets


@pytest.fixture(scope="session")
def _one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(Served, tmp_path_factory.mktemp("vertex")) as start:
        yield start()


@pytest.fixture
def vertex(_one: Served) -> Served:
    assert _one.ask("POST", "/_reset").status_code == 200
    _one.launcher.made.clear()
    _one.launcher.script = lambda group: None
    return _one


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Served]]:
    with serving(Served, tmp_path / "data") as start:
        yield start


@pytest.fixture
def stored(tmp_path: Path) -> Iterator[Stored]:
    with serving_buckets(tmp_path) as found:
        yield found
