"""A second user of this machine, who is real: a child process that has given up all rights of this one."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

UID = 65534
NEEDS_ROOT = pytest.mark.skipif(
    not sys.platform.startswith("linux") or os.geteuid() != 0, reason="only root can become a second user"
)


def _start(action: Callable[[], object]) -> int:
    """Start a process of the other user, which ends with 0 if he could do it."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setgroups([])
            os.setresgid(UID, UID, UID)
            os.setresuid(UID, UID, UID)
            os.umask(0)
            action()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return child


def does(action: Callable[[], object]) -> None:
    """Do something as the other user, and fail if he could not."""
    assert os.waitstatus_to_exitcode(os.waitpid(_start(action), 0)[1]) == 0, "the other user could not do it"


def try_to(action: Callable[[], object]) -> None:
    """Let the other user try something that he may be denied."""

    def tried() -> None:
        try:
            action()
        except OSError:
            pass

    does(tried)


@contextmanager
def keeps_doing(action: Callable[[], object]) -> Iterator[None]:
    """Let the other user do something meanwhile."""
    child = _start(action)
    try:
        yield
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


class Victim:
    """The possessions of this user: a folder with files, a process, and a place that everybody may write to."""

    def __init__(self, folder: Path, process: subprocess.Popen[bytes]) -> None:
        self.folder, self._process = folder, process
        self.open, self.precious = folder / "everyone", folder / "home"
        self.open.mkdir()
        self.open.chmod(0o777)
        for name in ("thesis/text", "events/a.b.c.part", "1-chief-0/data", "gcs/bucket/object", "environments/x/lock"):
            (self.precious / name).parent.mkdir(parents=True, exist_ok=True)
            (self.precious / name).write_text(name)
        self.pid = process.pid
        self._before = self._now()

    def is_whole(self) -> bool:
        """Return whether all files are there as they were, with their modes, and the process lives."""
        return self._before.items() <= self._now().items() and self._process.poll() is None

    def _now(self) -> dict[Path, tuple[int, bytes]]:
        found = [self.precious, *self.precious.rglob("*")]
        return {path: (path.lstat().st_mode, path.read_bytes() if path.is_file() else b"") for path in found}


@contextmanager
def victim() -> Iterator[Victim]:
    """The possessions of this user, in a folder that others may pass through, as no folder of pytest's is."""
    folder = Path(tempfile.mkdtemp(prefix="trial-"))
    folder.chmod(0o755)
    with subprocess.Popen(["sleep", "600"]) as process:
        try:
            yield Victim(folder, process)
        finally:
            process.kill()
            shutil.rmtree(folder, ignore_errors=True)
