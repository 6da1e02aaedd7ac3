"""One attempt on a host of one task; its processes, signals and records are played."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support import LIMIT_S, PROGRAMS, REPO

pytestmark = pytest.mark.process


def ran(case: str, folder: Path) -> dict:
    command = [sys.executable, str(PROGRAMS / "one_attempt.py"), case, str(folder / "run")]
    done = subprocess.run(command, cwd=folder, env={"PYTHONPATH": str(REPO), "PATH": "/usr/bin:/bin"}, timeout=LIMIT_S,
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_signal_ends_the_wait_of_a_task_for_its_restart_and_starts_nothing(tmp_path: Path) -> None:
    end = ran("stopped while it waits", tmp_path)
    assert (end["reason"], end["started"]) == ("preempted", 1)


def test_a_failure_from_before_a_restart_in_another_container_explains_no_later_end(tmp_path: Path) -> None:
    end = ran("an old failure", tmp_path)
    assert end["reason"] == "killed"
    assert "evaluator-0 was killed by SIGKILL" in end["message"]


def test_a_process_that_holds_the_output_of_a_task_that_has_ended_ends_with_it(tmp_path: Path) -> None:
    end = ran("its output is held", tmp_path)
    assert "ended with exit code 3" in end["message"]
    assert end["lasted_s"] < 30, "60 s if its output is awaited"


def test_processes_that_a_task_has_left_are_no_zombies_once_they_end(tmp_path: Path) -> None:
    end = ran("zombies", tmp_path)
    assert "ended with exit code 5" in end["message"]
