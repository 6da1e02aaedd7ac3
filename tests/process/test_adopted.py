"""Facts about a process: one that was forked by another and is a child of this one, one with an odd name."""

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


# One with a name that the kernel cuts within a letter, and one of another user on a machine that hides it (hidepid=1).
ODD = """
import os, pathlib, shutil, subprocess
from sdk.process import janitor, machine, spawn

os.symlink(shutil.which("sleep"), "fünfzehn-byteü")
odd = subprocess.Popen(["sleep", "20"], executable="./fünfzehn-byteü").pid
def hiding(call):
    def opened(path, *about, **named):
        if str(path) == "/proc/1/stat":
            raise PermissionError
        return call(path, *about, **named)
    return opened

pathlib.Path.read_text, janitor.open = hiding(pathlib.Path.read_text), hiding(open)
print(spawn.identity(odd) is not None, spawn.is_stopped(odd), machine.read(odd).memory_bytes > 0)
print("fünfzehn-byte" in spawn.described(odd), {1, odd} & janitor._processes().keys() == {odd})
print(spawn.end_orphans(), spawn.identity(odd))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc is Linux only")
def test_no_process_with_any_name_or_of_any_user_ends_a_run(tmp_path) -> None:
    ended = subprocess.run([sys.executable, "-c", ODD], capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert ended.stdout.split() == ["True", "False", "True", "True", "True", "[]", "None"], ended.stderr
