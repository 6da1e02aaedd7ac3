"""The log index: when each log grew, noted by the supervisor while the tasks write.

Tasks write their logs themselves, so that no byte can be lost or delayed by podlift. One file next to the logs of an
attempt has a line per check: the time, and the sizes of the logs that have changed since the previous check.
"""

from __future__ import annotations

import json
import os
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from ..clock import Clock
from ..job.layout import RunPaths

_EVERY_S = 0.1
# The interval grows with the age of the attempt: a week of output takes a hundred thousand lines, not six million.
_PART_OF_AGE = 1e-4


class LogIndexWriter:
    """Writes the log index of one attempt. Only the supervisor does. Call `update` several times a second."""

    def __init__(self, paths: RunPaths, attempt: int, tasks: Sequence[str], clock: Clock) -> None:
        self._logs = {task: paths.log(attempt, task) for task in tasks}
        self._sizes: dict[str, int] = {}
        self._clock = clock
        self._began = self._checked = clock.monotonic()
        self._path = paths.log_times(attempt)
        self._file: int | None = None

    def update(self) -> None:
        """Note which logs have grown, unless the last check was a moment ago."""
        now = self._clock.monotonic()
        if now - self._checked >= max(_EVERY_S, (now - self._began) * _PART_OF_AGE):
            self._checked = now
            self._note()

    def close(self) -> None:
        """Note which logs have grown since, after the end of the tasks."""
        self._note()
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _note(self) -> None:
        changed = {}
        for task, log in self._logs.items():
            # A task that has not started has no log.
            with suppress(OSError):
                size = os.stat(log).st_size
                if size != self._sizes.get(task, 0):
                    self._sizes[task] = changed[task] = size
        # A full disk must not fail the run because of the order of log lines.
        with suppress(OSError):
            if changed and self._file is None:
                self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
            if changed and self._file is not None:
                os.write(self._file, json.dumps([round(self._clock.now(), 3), changed]).encode() + b"\n")


@dataclass
class LogGrowth:
    """The growth of a log, which had `sizes[i]` bytes at `times[i]`."""

    times: array[float] = field(default_factory=lambda: array("d"))
    sizes: array[int] = field(default_factory=lambda: array("q"))

    def add(self, time: float, size: int) -> None:
        """Note a size. The order within a log stays, even if the machine's clock is set back or the log is emptied."""
        self.times.append(max(time, self.times[-1]) if self.times else time)
        self.sizes.append(max(size, self.sizes[-1]) if self.sizes else size)

    def after(self, offset: int) -> tuple[float, int] | None:
        """Return when the byte at `offset` existed at the latest, and the file's size then, or None if unknown."""
        index = bisect_left(self.sizes, offset + 1)
        return (self.times[index], self.sizes[index]) if index < len(self.sizes) else None


class LogIndex:
    def __init__(self, path: str) -> None:
        self._path = path
        self._read = 0
        self._growths: dict[str, LogGrowth] = {}

    def of(self, task: str) -> LogGrowth:
        """Return the growth of a task's log."""
        return self._growths.setdefault(task, LogGrowth())

    def refresh(self) -> None:
        with suppress(FileNotFoundError), Path(self._path).open("rb") as file:
            file.seek(self._read)
            for line in file:
                if not line.endswith(b"\n"):
                    break  # it is being written
                self._read += len(line)
                # A damaged line costs the order of a few log lines, but no log line.
                with suppress(ValueError, TypeError, AttributeError):
                    time, sizes = json.loads(line)
                    for task, size in sizes.items():
                        self.of(task).add(float(time), int(size))
