"""A root with one sweep of a small program, on a virtual clock."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support import FakeClock

from sdk.storage import posix
from sdk.sweeps import creation

if TYPE_CHECKING:
    from paper_trials import World

collect_ignore_glob = [] if find_spec("optuna") else ["test_*.py"]


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("swept") / "train.py"
    path.write_text("print(1)\n")
    return path


@pytest.fixture
def world(tmp_path: Path, program: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    from paper_trials import PaperTrials, World

    clock = FakeClock()
    monkeypatch.setattr(creation, "start", lambda *about: False)
    monkeypatch.setattr(posix, "sync_file", lambda handle: None)
    monkeypatch.setattr(posix, "sync_folder", lambda folder: None)
    return World(str(tmp_path / "root"), program, clock, PaperTrials(clock))
