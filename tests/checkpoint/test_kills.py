"""A writer is killed with SIGKILL; whatever it acknowledged is found again, and nothing of what it left is in the way."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support import PROGRAMS

pytestmark = pytest.mark.process

# Each line is one attempt, killed there, and each begins with what the one before has left.
STEPS = {
    "02-the-lease": ["kill before swap LEASE 1", "kill after swap LEASE 1"],
    "02-the-opening": ["kill before put_new openings/ 1", "kill after put_new openings/ 1"],
    "02-the-data": ["kill before put_new data/ 1", "kill after put_new data/ 4", "kill after put_new data/ 6"],
    "02-before-the-commit": ["kill before get LEASE 2", "kill after get LEASE 3", "kill before put_new commits/ 3"],
    "02-after-the-commit-and-before-its-acknowledgement": [
        "kill after put_new commits/ 1",
        "kill after put_new commits/ 4",
    ],
    "02-retention": ["kill before delete commits/ 1", "kill after delete commits/ 1", "kill after delete commits/ 2"],
    "02-removal-of-data": ["kill before delete data/ 1", "kill after delete data/ 2", "kill after delete data/ 7"],
    "02-collection-of-garbage": [
        "kill after put_new data/ 3",
        "kill before delete data/e000001/ 1",
        "kill after delete data/e000001/ 2",
    ],
}
MOMENTS = [
    "written 1",
    "written 5",
    "synced 1",
    "synced 9",
    "linked 1",
    "linked 8",
    "replaced 1",
    "deleted 1",
    "deleted 3",
]


def killed(folder: Path, *words: str) -> None:
    command = [sys.executable, str(PROGRAMS / "checkpoint_kills.py"), str(folder), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr + "".join(p.read_text() for p in folder.glob("log"))


@pytest.mark.parametrize("faults", [pytest.param(faults, id=name) for name, faults in STEPS.items()])
def test_a_kill_at_a_step_of_the_protocol_loses_nothing_acknowledged(tmp_path: Path, faults: list[str]) -> None:
    killed(tmp_path, *(word for fault in faults for word in ("--fault", fault)))


def test_a_kill_at_a_moment_of_a_write_loses_nothing_acknowledged(tmp_path: Path) -> None:
    killed(tmp_path, *(word for moment in MOMENTS for word in ("--moment", moment)))


def test_01_fifty_kills_at_random_moments_lose_nothing_acknowledged(tmp_path: Path) -> None:
    killed(tmp_path, "--count", "50")


@pytest.mark.full
def test_01_five_hundred_kills_at_random_moments_lose_nothing_acknowledged(tmp_path: Path) -> None:
    killed(tmp_path, "--count", "500", "--seed", "1")
