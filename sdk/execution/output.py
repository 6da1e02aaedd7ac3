"""Where the tasks of a host write: into a folder of logs, or through the agent of a container to its own output."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol

from ..clock import Clock
from ..job.layout import RunPaths
from ..process.line_pipe import LinePipe
from ..process.log_index import LogIndexWriter
from ..process.log_tail import last_lines
from ..runtime import secret_values
from ..tracebacks import last_error
from .tail import CopiedOutput

_TAIL_LINES, _SEARCHED_LINES = 20, 1000
# How long the rest of a task's output is copied, also in a container that is about to be killed.
_DRAIN_S, _LAST_DRAIN_S = 60.0, 5.0


class Output(Protocol):
    """The output of the tasks of one attempt."""

    def ended(self, task: str) -> None:
        """Take the rest of a task's output. All its processes are gone."""

    def update(self) -> None:
        """Do the due work; called twenty times a second."""

    def count(self, task: str) -> int:
        """Return how many bytes a task has written so far."""
        ...

    def last_error(self, task: str) -> str:
        """Return the last line of a task that looks like an error, or ""."""
        ...

    def last_lines(self, task: str) -> str:
        """Return the last lines of a task, or ""."""
        ...

    def log(self, task: str) -> str:
        """Return the path of a task's log, or "" if it is elsewhere."""
        ...

    def close(self) -> None:
        """Called once all processes of the attempt are gone."""


class FolderOutput:
    """The logs of tasks in the run's folder, which the tasks write themselves.

    With `secrets`, values by name, their output goes through pipes in `folder`, which this process copies to the logs.
    """

    def __init__(
        self, paths: RunPaths, attempt: int, tasks: Sequence[str], secrets: Mapping[str, str], folder: str, clock: Clock
    ) -> None:
        self._logs, self._folder = {task: paths.log(attempt, task) for task in tasks}, folder
        self._secrets = secret_values.encoded(secret_values.words(secrets, secrets))
        self._index = LogIndexWriter(paths, attempt, tasks, clock)
        self._pipes: dict[str, LinePipe] = {}
        self._files: list[int] = []

    def target(self, task: str) -> str:
        """Return the path to which a task writes."""
        return os.path.join(self._folder, f"{task}.pipe") if self._secrets else self._logs[task]

    def open(self) -> None:
        """Begin to copy, before the tasks start."""
        if not self._secrets:
            return
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        for task, log in self._logs.items():
            file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
            self._files.append(file)
            self._pipes[task] = LinePipe(self.target(task), partial(self._write, file), self._secrets)
            self._pipes[task].start()

    def ended(self, task: str) -> None:
        """Do nothing: the pipe of a task that is started again stays."""

    def update(self) -> None:
        self._index.update()

    def count(self, task: str) -> int:
        try:
            return os.stat(self._logs[task]).st_size
        except FileNotFoundError:
            return 0

    def last_error(self, task: str) -> str:
        return last_error(last_lines(self._logs[task], _SEARCHED_LINES))

    def last_lines(self, task: str) -> str:
        return last_lines(self._logs[task], _TAIL_LINES)

    def log(self, task: str) -> str:
        return self._logs[task]

    def close(self) -> None:
        for pipe in self._pipes.values():
            pipe.join(_LAST_DRAIN_S)
        for file in self._files if not any(pipe.is_open for pipe in self._pipes.values()) else ():
            os.close(file)
        self._index.close()

    def _write(self, file: int, data: bytes) -> None:
        left = memoryview(secret_values.hidden_bytes(data, self._secrets))
        while left:
            try:
                left = left[os.write(file, left) :]
            except OSError:
                # The disk is full: the task must not wait for it.
                return


class ContainerOutput:
    """The output of a container's task: copied to the container's own, and to `add`.

    A task that is started again gets new pipes in `folder`.
    """

    def __init__(
        self,
        add: Callable[[bytes], None],
        folder: str,
        secrets: Sequence[str],
        never_stored: Sequence[str],
        stop_requested: Callable[[], bool],
    ) -> None:
        self._add, self._folder, self._stop_requested = add, folder, stop_requested
        self._secrets, self._never_stored = secrets, never_stored
        self._copy: CopiedOutput | None = None

    def opened(self) -> list[str]:
        """Return new pipes for the stdout and stderr of a process."""
        self._copy = CopiedOutput(self._add, self._folder, self._secrets, self._never_stored)
        return self._copy.paths

    def started(self) -> None:
        """Begin to copy, once the process has opened its ends."""
        if self._copy is not None:
            self._copy.start()

    def ended(self, task: str) -> None:
        if self._copy is not None:
            self._copy.finish(_LAST_DRAIN_S if self._stop_requested() else _DRAIN_S)

    def update(self) -> None:
        """Do nothing: threads copy."""

    def count(self, task: str) -> int:
        return self._copy.count if self._copy is not None else 0

    def last_error(self, task: str) -> str:
        return self._copy.last_error if self._copy is not None else ""

    def last_lines(self, task: str) -> str:
        return "\n".join(self._copy.last_lines) if self._copy is not None else ""

    def log(self, task: str) -> str:
        return ""

    def close(self) -> None:
        """Do nothing: the rest was taken when the task ended."""
