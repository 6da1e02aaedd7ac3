"""An emulator with a frozen clock whose custom jobs run nothing, and Google's own client of Cloud Scheduler."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from served import FakeLauncher
from timetable import Timetable

from sdk.emulator.vertex.lifecycle import JobTimings

TIMINGS = JobTimings(queue_s=0.0, provision_s=0.0, stockout_s=0.0, grace_s=0.0)


@pytest.fixture(scope="session")
def _one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Timetable]:
    made = Timetable(tmp_path_factory.mktemp("scheduler"), FakeLauncher(), timings=TIMINGS, frozen=True)
    yield made
    made.stop()


@pytest.fixture
def timetable(_one: Timetable) -> Timetable:
    """An emulator without jobs, whose custom jobs succeed at once."""
    assert _one.ask("POST", "/_reset").status_code == 200
    _one.launcher.script = lambda group: group.codes.update({"workerpool0-0": 0})
    return _one


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Timetable]]:
    """Start an emulator of the test's own, again and again on the same folder."""
    started: list[Timetable] = []

    def start(**options: Any) -> Timetable:
        started.append(Timetable(tmp_path / "data", FakeLauncher(), **{"timings": TIMINGS, **options}))
        return started[-1]

    yield start
    for each in started:
        each.stop()
