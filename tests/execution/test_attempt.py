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


ENDS = {
    "a signal ends a task's wait for its restart, and nothing starts": ("stopped while it waits", "preempted", ""),
    "a failure before a restart elsewhere explains no later end": (
        "an old failure",
        "killed",
        "evaluator-0 was killed by SIGKILL",
    ),
    "a process that holds its output ends with it": ("its output is held", "user_error", "ended with exit code 3"),
    "processes that it has left are no zombies": ("zombies", "user_error", "ended with exit code 5"),
}


@pytest.mark.parametrize(("case", "reason", "message"), ENDS.values(), ids=ENDS)
def test_an_attempt_of_one_task_ends_for_its_own_reason(tmp_path: Path, case: str, reason: str, message: str) -> None:
    end = ran(case, tmp_path)
    assert (end["reason"], message in end["message"], end["started"]) == (reason, True, 1)
    assert end["lasted_s"] < 30 or "held" not in case, "60 s if its output is awaited"
