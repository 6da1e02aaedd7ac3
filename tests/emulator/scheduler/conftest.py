"""An emulator with a frozen clock and custom jobs that run nothing, and Google's own client of Cloud Scheduler."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from served import serving
from timetable import Timetable


@pytest.fixture(scope="session")
def _one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Timetable]:
    with serving(Timetable, tmp_path_factory.mktemp("scheduler")) as start:
        yield start(frozen=True)


@pytest.fixture
def timetable(_one: Timetable) -> Timetable:
    """An emulator without jobs; its custom jobs succeed at once."""
    assert _one.ask("POST", "/_reset").status_code == 200
    _one.launcher.script = lambda group: group.codes.update({"workerpool0-0": 0})
    return _one


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Timetable]]:
    with serving(Timetable, tmp_path / "data") as start:
        yield start
