"""A root with schedules of one small program, on a virtual clock."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from paper_runs import START, PaperRuns, World
from support import FakeClock

import sdk
from sdk.job.plan import Plan
from sdk.storage import posix

# Preconditions need no expression of cron; without cronsim, the other files are not there, and no line says so.
collect_ignore_glob = [] if find_spec("cronsim") else ["test_[!p]*.py", "test_processes*.py"]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    folder = tmp_path_factory.mktemp("program")
    (folder / "train.py").write_text("print(1)\n")
    args = ["--day", "{slot:%d}", "--since", "{previous_success}"]
    return sdk.plan(folder / "train.py", root=folder / "root", name="each", args=args)


@pytest.fixture(autouse=True, scope="module")
def quick_disk() -> Iterator[None]:
    """Tests of the store cover a loss of power."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(posix, "sync_file", lambda handle: None)
        patch.setattr(posix, "sync_folder", lambda folder: None)
        yield


@pytest.fixture
def world(tmp_path: Path, template: Plan) -> World:
    clock = FakeClock(START.timestamp() - 60)
    return World(str(tmp_path), template, clock, PaperRuns(clock))
