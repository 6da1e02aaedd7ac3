"""The process of the last phase, in the place of the first task's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ..process import spawn
from ..process.template import TaskStart
from .ending import POLL_S
from .output import Output
from .task import TaskProcess


class PhaseProcess:
    """Started as `start` says, with further arguments; `launch` starts it in the place of the task."""

    def __init__(
        self,
        start: TaskStart,
        launch: Callable[[TaskStart], TaskProcess],
        output: Output,
        sleep: Callable[[float], None],
    ) -> None:
        self._start, self._launch, self._output, self._sleep = start, launch, output, sleep
        self._process: TaskProcess | None = None

    def start(self, arguments: list[str]) -> None:
        self._process = self._launch(replace(self._start, command=[*self._start.command, *arguments]))

    def poll(self) -> int | None:
        self._output.update()
        return None if self._process is None else self._process.poll()

    def end(self) -> None:
        if self._process is None:
            return
        self._process.kill()
        while self._process.poll() is None:
            self._sleep(POLL_S)
        spawn.end_orphans()
        self._output.ended(self._process.name)
