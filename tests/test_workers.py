"""Tests that run in forks (`workers.py`) are judged, measured and kept apart as those of one process are."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support import REPO

pytestmark = pytest.mark.process

Pytest = Callable[..., tuple[int, str]]


@pytest.fixture
def run(tmp_path: Path) -> Pytest:
    """Run the files of a project in two workers, and return the exit code and the output: `run(test_a="def test(): ...")`."""

    def runner(*options: str, **files: str) -> tuple[int, str]:
        (tmp_path / "conftest.py").write_text(f'pytest_plugins = ["tiers", "workers"]\n{files.pop("conftest", "")}')
        (tmp_path / "pytest.ini").write_text(f"[pytest]\npythonpath = {REPO / 'tests'}\nmarkers = unit:\n")
        for name, text in files.items():
            (tmp_path / f"{name}.py").write_text(text)
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:podlift",
            "--workers",
            "2",
            *options,
        ]
        done = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True, cwd=tmp_path)
        return done.returncode, done.stdout + done.stderr

    return runner


SHARED = """
import os, pathlib, pytest

@pytest.fixture(scope="session")
def whole(tmp_path_factory):
    yield os.getpid()
    pathlib.Path("ended").open("a").write("session\\n")

@pytest.fixture(scope="module")
def mine(whole):
    yield whole
    pathlib.Path("ended").open("a").write("module\\n")
"""


def test_each_outcome_is_reported_and_what_a_file_or_a_worker_shares_is_made_once_in_it(
    run: Pytest, tmp_path: Path
) -> None:
    note = "import os, pathlib\ndef test_{0}(mine):\n"
    note += "    pathlib.Path('pids').open('a').write(f'{{os.getpid()}} {{mine}}\\n')\n"
    files = {f"test_{letter}": note.format("one") + note.format("two") for letter in "abc"}
    others = "import pytest, warnings\n"
    others += "def test_fails(tmp_path): print('the last words'); assert 1 == 2\ndef test_skips(): pytest.skip('why')\n"
    others += "def test_warns(): warnings.warn('be careful')\n"
    code, said = run(conftest=SHARED, **files, test_d=others)
    assert code == 1
    assert "1 failed, 7 passed, 1 skipped, 1 warning" in said, said
    assert "the last words" in said and "assert 1 == 2" in said and "be careful" in said
    pids = [line.split() for line in (tmp_path / "pids").read_text().splitlines()]
    assert len(pids) == 6 and len({pid for pid, _ in pids}) == 2, "two workers"
    assert all(pid == maker for pid, maker in pids)
    ended = (tmp_path / "ended").read_text().splitlines()
    assert (ended.count("module"), ended.count("session")) == (3, 2), "at the end of each file, and of each worker"


def test_a_worker_that_dies_fails_its_test_and_the_others_are_run(run: Pytest) -> None:
    text = "import os\ndef test_one(): pass\ndef test_dies(): os._exit(3)\ndef test_three(): pass\n"
    code, said = run(test_a=text, test_b="def test_four(): pass")
    assert code == 1
    assert "1 failed, 3 passed" in said and "test_dies - the worker process that ran this test has ended" in said, said


def test_the_first_failure_ends_all_if_that_is_wished(run: Pytest) -> None:
    files = {f"test_{number}": "def test_fails(): assert 0\ndef test_other(): pass\n" for number in range(9)}
    code, said = run("-x", **files)
    assert code == 1 and "stopping after" in said, said
    assert said.count("FAILED") <= 2, said


def test_an_end_of_a_worker_that_fails_fails_all(run: Pytest) -> None:
    fixture = "import pytest\n@pytest.fixture(scope='session')\ndef whole():\n    yield\n    raise RuntimeError('not put away')"
    code, said = run(test_a=fixture + "\ndef test_one(whole): pass\n")
    assert code == 1 and "RuntimeError: not put away" in said, said


def test_a_worker_that_dies_after_its_tests_fails_all(run: Pytest) -> None:
    fixture = "import os, pytest\n@pytest.fixture(scope='session')\ndef whole():\n    yield\n    os._exit(3)"
    code, said = run(test_a=fixture + "\ndef test_one(whole): pass\n")
    assert code == 1 and "a worker process ended with 3" in said, said


def test_the_guard_of_the_tiers_and_the_measured_seconds_are_those_of_the_workers(run: Pytest, tmp_path: Path) -> None:
    busy = "import time\ndef test_busy():\n    while time.process_time() < 1.5: pass\n"
    code, said = run(
        f"--durations-file={tmp_path}/found.json",
        test_a="import os\ndef test_one(): os.fork() or os._exit(0)\n",
        test_b=busy,
    )
    assert code == 1 and "A test of the tier unit started a process: os.fork" in said, said
    assert "1 failed, 1 passed" in said
    (row,) = json.loads((tmp_path / "found.json").read_text())["tests"].values()
    assert row["cpu_s"] > 1.0
