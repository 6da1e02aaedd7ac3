"""A writer is killed with SIGKILL; each acknowledged object is found again, and no remainder is in the way.

To a bucket it writes while every fifth request goes wrong.
"""

import subprocess
import sys
from pathlib import Path

import pytest
from support import PROGRAMS

pytestmark = pytest.mark.process

# Each is killed there, and begins with the files of the one before in its line.
STEPS = {
    "the lease": ["kill before swap LEASE 1", "kill after swap LEASE 1"],
    "the opening": ["kill before put_new openings/ 1", "kill after put_new openings/ 1"],
    "the data": ["kill before put_new data/ 1", "kill after put_new data/ 4", "kill after put_new data/ 6"],
    "before the commit": ["kill before get LEASE 2", "kill after get LEASE 3", "kill before put_new commits/ 3"],
    "after the commit": ["kill after put_new commits/ 1", "kill after put_new commits/ 4"],
    "retention": ["kill before delete commits/ 1", "kill after delete commits/ 1", "kill after delete commits/ 2"],
    "removal of data": ["kill before delete data/ 1", "kill after delete data/ 2", "kill after delete data/ 7"],
    "collection of garbage": [
        "kill after put_new data/ 3",
        "kill before delete data/e000001/ 1",
        "kill after delete data/e000001/ 2",
    ],
}
MOMENTS = [
    *("written 1", "written 5", "synced 1", "synced 9", "linked 1", "linked 8"),
    *("replaced 1", "deleted 1", "deleted 3"),
]


def killed(folder: Path, *words: str) -> None:
    command = [sys.executable, str(PROGRAMS / "checkpoint_kills.py"), str(folder), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr + "".join(p.read_text() for p in folder.rglob("log"))


def chains(*lines: list[str]) -> list[str]:
    return [word for line in lines for word in ("--chain", *line)]


def test_02_a_kill_at_a_step_of_the_protocol_loses_nothing_acknowledged(tmp_path: Path) -> None:
    killed(tmp_path, *chains(*STEPS.values()))


def test_a_kill_at_a_moment_of_a_write_loses_nothing_acknowledged(tmp_path: Path) -> None:
    killed(tmp_path, *chains(MOMENTS))


@pytest.mark.parametrize("steps", [["retention"], pytest.param([*STEPS], marks=pytest.mark.full)])
def test_02_a_kill_at_a_step_of_the_protocol_of_a_bucket_loses_nothing_acknowledged(tmp_path, steps: list[str]) -> None:
    killed(tmp_path, "--store", "gcs", *chains(*(STEPS[step] for step in steps)))


@pytest.mark.parametrize("count", [10, pytest.param(500, marks=pytest.mark.full)])
def test_01_kills_at_random_moments_lose_nothing_acknowledged(tmp_path: Path, count: int) -> None:
    killed(tmp_path, "--count", str(count), "--seed", str(count))


@pytest.mark.parametrize("count", [2, pytest.param(50, marks=pytest.mark.full)])
def test_01_kills_among_the_faults_of_a_bucket_lose_nothing_acknowledged(tmp_path: Path, count: int) -> None:
    killed(tmp_path, "--store", "gcs", "--faults", "0.2", "--count", str(count))
