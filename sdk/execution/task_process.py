"""The task's process as its container's agent sees it: start it, forward signals, wait for it, end its descendants."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from types import FrameType

from ..process import free_memory, spawn
from ..process.template import CannotForkError, TaskStart, Template
from ..runtime.shared import Shared

# A task that is still waiting for its imports then does them itself, where the hang watch looks at it.
_IMPORT_S = 600.0


@dataclass(frozen=True, kw_only=True)
class ContainerState:
    """What the agent, its threads and its handler of signals know of each other; never changed in place."""

    pid: int | None = None  # of the task, while it is not reaped
    stop_requested: bool = False  # True once this container has received SIGTERM or SIGINT


class TaskProcess:
    """A child of this process, which may be the container's first process and has to reap all orphans in that case.

    One object serves all attempts, one after the other. Create and use it in the main thread; `send` may be called in any.
    """

    def __init__(self) -> None:
        self._state = Shared(ContainerState())
        spawn.adopt_orphans()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._forward)

    @property
    def pid(self) -> int | None:
        return self._state.value.pid

    @property
    def stop_requested(self) -> bool:
        return self._state.value.stop_requested

    def start(self, start: TaskStart, spare: Template | None) -> str:
        """Start the task, forked from the spare process if there is one. Return why it was not, or ""."""
        # The kernel ends the task when this process is gone: the task compares the number with its parent's.
        start = replace(start, env={**start.env, "PODLIFT_PARENT": str(os.getpid())})
        why = ""
        if spare is not None:
            try:
                self._started(spare.fork([start], self._stop(), stays=free_memory.allows_standby())[0].pid)
                return ""
            except CannotForkError as reason:
                why = str(reason)
        with open(start.log, "wb") as output, open(start.errors, "wb") as errors:
            process = subprocess.Popen(
                start.command,
                env=start.env,
                cwd=start.cwd,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                start_new_session=True,
            )
        # `poll` reaps it, together with orphans.
        process.returncode = 0
        self._started(process.pid)
        return why

    def _stop(self) -> Callable[[], bool]:
        """Return whether to wait no longer for the imports of the spare process."""
        until = time.monotonic() + _IMPORT_S
        return lambda: self.stop_requested or time.monotonic() >= until

    def _started(self, pid: int) -> None:
        # A signal that came during the start was not forwarded.
        if self._state.swap(lambda state: replace(state, pid=pid)).stop_requested:
            self.send(signal.SIGTERM)

    def poll(self) -> int | None:
        """Return the task's exit code, or the negative number of the signal that ended it, once its processes are gone."""
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return None
            if pid == self.pid:
                break
        code = os.waitstatus_to_exitcode(status)
        self._state.swap(lambda state: replace(state, pid=None))
        spawn.end_orphans()
        return code

    def send(self, number: int) -> None:
        """Send a signal to the task alone: it may need the processes that it started to save its state."""
        pid = self.pid
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def _forward(self, number: int, frame: FrameType | None) -> None:
        self._state.swap(lambda state: replace(state, stop_requested=True))
        self.send(signal.SIGTERM)
