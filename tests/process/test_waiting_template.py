"""A process from which tasks are forked: that it ends, and that it works in a container without root."""

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
linux = pytest.mark.skipif(sys.platform != "linux", reason="fork is safe on Linux only")


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
