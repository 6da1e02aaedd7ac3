"""The watchdog, which restarts a process that a signal has ended."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support import LIMIT_S

from sdk.backends.local import watchdog

pytestmark = pytest.mark.process


def guarded(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", "-S", watchdog.__file__, sys.executable, "-c", program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)


def test_a_process_killed_by_a_signal_restarts_and_its_exit_code_is_the_final_one(tmp_path: Path) -> None:
    program = """
import os, sys
with open(sys.argv[1], "a") as file:
    file.write("x")
if os.path.getsize(sys.argv[1]) < 3:
    os.kill(os.getpid(), 9)
sys.exit(4)
"""
    done = guarded(program, str(tmp_path / "starts"))
    assert (done.returncode, (tmp_path / "starts").read_text()) == (4, "xxx")
    assert done.stderr.splitlines() == ["Killed by signal 9: restarted."] * 2


def test_one_that_never_lives_long_is_left_alone_in_the_end(monkeypatch) -> None:
    waited: list[float] = []
    monkeypatch.setattr(watchdog.time, "sleep", waited.append)
    assert watchdog.main([sys.executable, "-I", "-S", "-c", "import os; os.kill(os.getpid(), 9)"]) == 1
    assert waited == [0.5, 1.0, 2.0, 4.0, 8.0]
