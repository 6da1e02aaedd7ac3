"""An emulator whose containers are scripts of the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from served import FakeLauncher, Served

from sdk.emulator.vertex.lifecycle import JobTimings


@pytest.fixture(scope="session")
def _one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    timings = JobTimings(queue_s=0.0, provision_s=0.0, stockout_s=0.0, grace_s=0.0)
    served = Served(tmp_path_factory.mktemp("vertex"), FakeLauncher(), timings=timings)
    yield served
    served.stop()


@pytest.fixture
def vertex(_one: Served) -> Served:
    """An emulator without jobs."""
    assert _one.ask("POST", "/_reset").status_code == 200
    _one.launcher.made.clear()
    _one.launcher.script = lambda group: None
    return _one


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Served]]:
    """Start an emulator of the test's own, again and again on the same folder."""
    started: list[Served] = []

    def start(**options: Any) -> Served:
        options = {"timings": JobTimings(queue_s=0.0, provision_s=0.0, stockout_s=0.0, grace_s=0.0), **options}
        started.append(Served(tmp_path / "data", FakeLauncher(), **options))
        return started[-1]

    yield start
    for each in started:
        each.stop()
