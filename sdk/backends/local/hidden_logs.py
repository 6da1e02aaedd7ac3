"""Keeps secrets out of the logs of tasks: their output goes through pipes, which this process copies to the logs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial

from ...job.plan import Plan
from ...process import task_environment
from ...process.line_pipe import LinePipe
from ...runtime import secret_values

_DRAIN_S = 5.0


class HiddenLogs:
    """The pipes of an attempt, for a job with secrets; without any, tasks write to their logs themselves."""

    def __init__(self, logs: Mapping[str, str], folder: str, values: Mapping[str, str]) -> None:
        self._logs, self._folder = logs, folder
        self._secrets = secret_values.encoded(secret_values.words(values, values))
        self._pipes: dict[str, LinePipe] = {}
        self._files: list[int] = []

    @classmethod
    def of(cls, plan: Plan, attempt: int, folder: str) -> HiddenLogs:
        """Return the pipes for the tasks of a plan."""
        values = task_environment.callers_values(plan, os.environ) if plan.job.secrets else {}
        logs = {task: plan.paths.log(attempt, task) for task in plan.tasks}
        return cls(logs, folder, {name: values[name] for name in plan.job.secrets})

    def target(self, task: str) -> str:
        """Return the path to which a task writes."""
        return os.path.join(self._folder, f"{task}.pipe") if self._secrets else self._logs[task]

    def open(self) -> None:
        if not self._secrets:
            return
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        for task, log in self._logs.items():
            file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
            self._files.append(file)
            self._pipes[task] = LinePipe(self.target(task), partial(self._write, file), self._secrets)
            self._pipes[task].start()

    def close(self) -> None:
        """Copy the rest. All processes of the tasks have ended."""
        for pipe in self._pipes.values():
            pipe.join(_DRAIN_S)
        for file in self._files if not any(pipe.is_open for pipe in self._pipes.values()) else ():
            os.close(file)

    def _write(self, file: int, data: bytes) -> None:
        left = memoryview(secret_values.hidden_bytes(data, self._secrets))
        while left:
            try:
                left = left[os.write(file, left) :]
            except OSError:
                # The disk is full: the task must not wait for it.
                return
