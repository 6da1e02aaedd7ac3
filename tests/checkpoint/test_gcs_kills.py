"""A writer to a bucket is killed while every fifth request goes wrong; whatever it acknowledged is found again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support import PROGRAMS

from .test_kills import STEPS

pytestmark = pytest.mark.process

RARE = [name for name in STEPS if name[3:] not in ("the-data", "retention")]


@pytest.mark.parametrize("count", [5, pytest.param(50, marks=pytest.mark.full)])
def test_01_kills_among_faults_lose_nothing_acknowledged(tmp_path: Path, count: int) -> None:
    killed(tmp_path, "--faults", "0.2", "--count", str(count))


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.full] * (name in RARE)) for name in STEPS])
def test_02_a_kill_at_a_step_of_the_protocol_loses_nothing_acknowledged(tmp_path: Path, name: str) -> None:
    killed(tmp_path, *(word for fault in STEPS[name] for word in ("--fault", fault)))


def killed(folder: Path, *words: str) -> None:
    command = [sys.executable, str(PROGRAMS / "checkpoint_kills.py"), str(folder), "--store", "gcs", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr + "".join(p.read_text() for p in folder.glob("log"))
