"""The process of one task: signals, its exit, and the end of all that it has started."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

from ..process import exit_reasons, spawn
from ..process.template import TaskStart

_END_POLL_S = 0.005


class TaskProcess:
    """A started task, in its own process group. Only `poll` waits for it."""

    def __init__(self, start: TaskStart, process: spawn.Process, *, exited: Callable[[], None] = lambda: None) -> None:
        self.start, self._process = start, process
        self._exited = exited  # called before the process is reaped
        self.code: int | None = None  # the exit code, or the negative number of the signal that ended it
        self.cpu_limit_s: float | None = None  # the limit of CPU time, if it was used up

    @property
    def name(self) -> str:
        return self.start.task

    @property
    def pid(self) -> int:
        return self._process.pid

    def poll(self) -> int | None:
        """Return the exit code once the task and the processes of its group are gone."""
        if self.code is None and self.has_exited:
            # Before it is reaped: until then no other group can have its number.
            spawn.end_group(self._process)
            self.cpu_limit_s = exit_reasons.cpu_limit(self.pid)
            self._exited()
            self.code = self._process.wait()
        return self.code

    @property
    def has_exited(self) -> bool:
        return spawn.has_exited(self._process)

    @property
    def is_exiting(self) -> bool:
        """Whether it has exited or is about to: the kernel has released its memory."""
        return spawn.is_exiting(self._process)

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the task alone: it may need the processes that it started to save its state."""
        if self.code is None:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill the task and its group; `poll` returns the code once they are gone."""
        if self.code is None:
            spawn.end_group(self._process)

    def end(self, sleep: Callable[[float], None]) -> int:
        """Kill the task and its group, and return its exit code once they are gone."""
        self.kill()
        while (code := self.poll()) is None:
            sleep(_END_POLL_S)
        return code


class StopSignals:
    """SIGTERM and SIGINT to this process: the running task gets SIGTERM at once, whatever this process is doing.

    Create it in the main thread. One object serves all attempts of a container.
    """

    def __init__(self) -> None:
        self.stop_requested = False
        self._pid: int | None = None  # of the task that gets the signals
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._forward)

    def forward_to(self, pid: int | None) -> None:
        """Pass signals on to this process, None for none. A signal that came while it was started was not passed on."""
        # In this order: a signal in between is passed on twice, and never lost.
        self._pid = pid
        if self.stop_requested:
            self._send()

    def _forward(self, number: int, frame: FrameType | None) -> None:
        self.stop_requested = True
        self._send()

    def _send(self) -> None:
        if (pid := self._pid) is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
