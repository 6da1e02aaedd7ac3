"""A process from which tasks are forked, and facts about a process that another one forked or that has an odd name."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support import LIMIT_S, REPO, until

from sdk.process import spawn
from sdk.process.template import CannotForkError, Imports, TaskStart, Template

pytestmark = pytest.mark.process

SCRIPT = str(REPO / "sdk" / "runtime" / "template.py")
linux = pytest.mark.skipif(sys.platform != "linux", reason="fork is safe, and /proc there, on Linux only")


def template(python: str, folder: Path) -> Template:
    imports = Imports(python=python, script=SCRIPT, modules=["json"], project=[])
    return Template(imports, dict(os.environ), cwd=str(folder), log=str(folder / "log"), room=200, yields=True)


def start(folder: Path, *command: str, cpus: tuple[int, ...] = ()) -> TaskStart:
    log = str(folder / "task.log")
    return TaskStart(task="chief-0", command=[*command], env=dict(os.environ), cwd=str(folder), log=log, cpus=cpus)


@linux
def test_a_template_ends_if_its_orders_end_within_an_attempt(tmp_path: Path) -> None:
    orders, end = os.pipe()
    config = f'{{"orders": {orders}, "go": {orders}, "news": 1, "log": "/dev/null", "modules": [], '
    config += '"outside": [], "work": "/", "yields": false}'
    waiting = subprocess.Popen([sys.executable, SCRIPT, config], pass_fds=[orders], stdout=subprocess.DEVNULL)
    os.close(orders)
    os.write(end, b"{}\n")
    os.close(end)
    assert waiting.wait(LIMIT_S) == 0


@linux
def test_one_that_may_not_raise_its_priority_again_forks_tasks_of_the_usual_one(tmp_path: Path) -> None:
    unshare = shutil.which("unshare")
    if unshare is None or subprocess.run([unshare, "-r", "true"], capture_output=True).returncode:
        pytest.skip("needs user namespaces")
    python, task = tmp_path / "python", tmp_path / "task.py"
    python.write_text(f'#!/bin/sh\nexec {unshare} -r {sys.executable} "$@"\n')
    python.chmod(0o755)
    task.write_text("import os\nprint('priority', os.getpriority(os.PRIO_PROCESS, 0), flush=True)\n")
    # With a CPU that it may not use it starts nevertheless.
    begun = start(tmp_path, sys.executable, str(task), cpus=(4000,))
    spawn.adopt_orphans()
    (forked,) = template(str(python), tmp_path).fork([begun], lambda: False)
    until(lambda: forked.poll() is not None)
    assert Path(begun.log).read_text() == f"priority {os.getpriority(os.PRIO_PROCESS, 0)}\n"


@linux
def test_one_that_has_died_or_failed_is_no_longer_spared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # What else the tests' process has started is not of this attempt.
    monkeypatch.setattr(spawn, "end_orphans", lambda: [])
    died, failed = template(sys.executable, tmp_path), template(sys.executable, tmp_path)
    for waiting in (died, failed):
        waiting.stand_by()
    os.kill(died.pid, signal.SIGKILL)
    until(lambda: not died.is_alive)
    assert died.pid not in spawn.SPARED
    died.close()

    def lost(*_: object) -> None:
        raise OSError("an error that no message of it names")

    monkeypatch.setattr(failed, "_send_orders", lost)
    with pytest.raises(CannotForkError, match="the process to be forked failed"):
        failed.fork([start(tmp_path, "true")], lambda: False, stays=True)
    assert failed.pid not in spawn.SPARED
    assert not failed.is_alive


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


@linux
def test_no_process_with_any_name_or_of_any_user_ends_a_run(tmp_path) -> None:
    ended = subprocess.run([sys.executable, "-c", ODD], capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert ended.stdout.split() == ["True", "False", "True", "True", "True", "[]", "None"], ended.stderr
