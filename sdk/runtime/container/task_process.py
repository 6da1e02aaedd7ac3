"""The task's process as its container's agent sees it: start it, forward signals, wait for it, end its descendants."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from types import FrameType

from ...process import spawn
from ..shared import Shared


@dataclass(frozen=True, kw_only=True)
class ContainerState:
    """What the agent, its watching thread and its handler of signals know of each other; never changed in place."""

    pid: int | None = None  # of the task, while it is not reaped
    stop_requested: bool = False  # True once this container has received SIGTERM or SIGINT
    replaced: tuple[str, ...] = ()  # peers whose containers Vertex AI has replaced


class TaskProcess:
    """A child of this process, which may be the container's first process and has to reap all orphans in that case.

    Create it in the main thread, then call `start`, then `wait`.
    """

    def __init__(self) -> None:
        self.state = Shared(ContainerState())
        spawn.adopt_orphans()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._forward)

    def start(
        self, task_main: str, payload: str, task: str, *, env: Mapping[str, str], cwd: str, output: Sequence[int]
    ) -> None:
        """Start the task; `output` are the descriptors of its stdout and stderr."""
        # The kernel ends the task when this process is gone: the task compares the number with its parent's.
        env = {**env, "PODLIFT_PARENT": str(os.getpid())}
        process = subprocess.Popen(
            [sys.executable, task_main, payload, task],
            env=env,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=output[0],
            stderr=output[1],
            start_new_session=True,
        )
        # A signal that came during the start was not forwarded.
        if self.state.swap(lambda state: replace(state, pid=process.pid)).stop_requested:
            self._signal(signal.SIGTERM)
        # `wait` reaps it, together with orphans.
        process.returncode = 0

    def wait(self) -> int:
        """Return the task's exit code, or the negative number of the signal that ended it, once its processes are gone."""
        while True:
            pid, status = os.waitpid(-1, 0)
            if pid == self.state.value.pid:
                break
        code = os.waitstatus_to_exitcode(status)
        self.state.swap(lambda state: replace(state, pid=None))
        spawn.end_orphans()
        return code

    def _forward(self, number: int, frame: FrameType | None) -> None:
        self.state.swap(lambda state: replace(state, stop_requested=True))
        # To the task alone: it may need the processes that it started to save its state.
        self._signal(signal.SIGTERM)

    def give_up(self, replaced: tuple[str, ...]) -> None:
        """Kill the task, since these peers were replaced."""
        self.state.swap(lambda state: replace(state, replaced=replaced))
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        pid = self.state.value.pid
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
