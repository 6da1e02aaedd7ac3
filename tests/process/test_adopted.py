"""What is known of a process that was forked by another one and is a child of this one."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

pytestmark = pytest.mark.process

PROGRAM = """
import os, time
from sdk.process import spawn

pid = os.fork() or time.sleep(60)
process = spawn.Adopted(pid)
print(spawn.has_exited(process), flush=True)
spawn.end_orphans()  # as a supervisor does that has waited for too long
print(spawn.has_exited(process), process.poll(), process.wait(), flush=True)
"""


def test_a_process_that_was_reaped_with_the_orphans_counts_as_killed() -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60)
    assert ended.stdout.split() == ["False", "True", str(-signal.SIGKILL), str(-signal.SIGKILL)], ended.stderr
