"""The task's process as its container's agent sees it: started, told to end, waited for, and nobody left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from types import FrameType

from ...process import spawn


class Task:
    """A child of this process, which may be the container's first one and has to look after all orphans then.

    Usage: make it in the main thread, then `start`, then `wait`.

    Attributes:
        told: whether somebody has asked this container to end.
    """

    def __init__(self) -> None:
        self.told = False
        self._pid: int | None = None
        spawn.adopt_orphans()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._pass_on)

    def start(self, first_stage: str, payload: str, task: str, *, env: Mapping[str, str], cwd: str) -> None:
        """Start it; its output is the container's.

        Args:
            first_stage: path of the first file that it runs.
            payload: path of what it has to do.
            task: its name.
            env: its variables.
            cwd: the folder in which it starts.
        """
        # The kernel ends it when this process is gone: it compares the number.
        own = {**env, "PODLIFT_PARENT": str(os.getpid())}
        process = subprocess.Popen(
            [sys.executable, first_stage, payload, task],
            env=own,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._pid = process.pid
        # Whoever was told in between has told nobody yet.
        if self.told:
            self._tell()
        # It is waited for here, with everybody else's orphans.
        process.returncode = 0

    def wait(self) -> int:
        """Return its exit code, or the negative number of the signal that ended it; its own processes are gone then."""
        while True:
            pid, status = os.waitpid(-1, 0)
            if pid == self._pid:
                break
        code = os.waitstatus_to_exitcode(status)
        self._pid = None
        spawn.end_orphans()
        return code

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        self.told = True
        self._tell()

    def _tell(self) -> None:
        # The task alone: what it has started may be needed to save its state.
        if self._pid is not None:
            try:
                os.kill(self._pid, signal.SIGTERM)
            except ProcessLookupError:
                pass

    def kill(self) -> None:
        """End it at once."""
        pid = self._pid
        if pid is not None:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
