"""When the logs grew: what the lines themselves do not say, noted by the supervisor while the tasks write.

The tasks write their logs themselves, so that nobody can lose or delay a byte of them. Beside the logs of an attempt lies
one file with a line for each look: the time, and the sizes of the logs that have changed since the look before.
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
from types import TracebackType

from ..clock import Clock
from ..spec.layout import RunPaths

_EVERY_S = 0.1
# The older an attempt is, the coarser: a week of output takes a hundred thousand looks, not six million.
_PART_OF_AGE = 1e-4


class Stamper:
    """Notes the sizes of one attempt's logs. The supervisor's: nobody else writes the file.

    Usage: `with Stamper(paths, 1, tasks, clock) as stamper:`, and `stamper.look()` several times a second

    Args:
        paths: the run.
        attempt: counts from 1.
        tasks: names of the tasks.
        clock: what time it is.
    """

    def __init__(self, paths: RunPaths, attempt: int, tasks: Sequence[str], clock: Clock) -> None:
        self._logs = {task: paths.log(attempt, task) for task in tasks}
        self._sizes: dict[str, int] = {}
        self._clock = clock
        self._began = self._looked = clock.monotonic()
        self._path = paths.log_times(attempt)
        self._file: int | None = None

    def __enter__(self) -> Stamper:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def look(self) -> None:
        """Note what has grown, unless the last look was a moment ago."""
        now = self._clock.monotonic()
        if now - self._looked >= max(_EVERY_S, (now - self._began) * _PART_OF_AGE):
            self._looked = now
            self._note()

    def close(self) -> None:
        """Note what has grown at the end; the tasks are gone."""
        self._note()
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _note(self) -> None:
        changed = {}
        for task, log in self._logs.items():
            # A log that is being rotated has no name for a moment.
            with suppress(OSError):
                size = os.stat(log).st_size
                if size != self._sizes.get(task, 0):
                    self._sizes[task] = changed[task] = size
        # A full disk is the program's to say: the order of its lines is not worth a run.
        with suppress(OSError):
            if changed and self._file is None:
                self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
            if changed and self._file is not None:
                os.write(self._file, json.dumps([round(self._clock.now(), 3), changed]).encode() + b"\n")


@dataclass
class Growth:
    """How one file grew: it had `sizes[i]` bytes at `times[i]`."""

    times: array[float] = field(default_factory=lambda: array("d"))
    sizes: array[int] = field(default_factory=lambda: array("q"))

    def after(self, offset: int) -> tuple[float, int] | None:
        """Return the time at which the byte behind `offset` was there at the latest, and the size then; None if unknown."""
        found = bisect_left(self.sizes, offset + 1)
        return (self.times[found], self.sizes[found]) if found < len(self.sizes) else None


class Stamps:
    """What a Stamper has noted so far, of one attempt.

    Args:
        path: its file; it may not exist (yet).
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._read = 0
        self._rest = b""
        self._found: dict[str, list[Growth]] = {}

    def of(self, task: str) -> list[Growth]:
        """Return how the task's log grew; one for each file, where the log was rotated, oldest first."""
        return self._found.setdefault(task, [Growth()])

    def refresh(self) -> None:
        """Read what is new."""
        with suppress(FileNotFoundError), Path(self._path).open("rb") as file:
            file.seek(self._read)
            for line in file:
                if not line.endswith(b"\n"):
                    break  # it is being written
                self._read += len(line)
                # A damaged line costs the order of a few lines, no line.
                with suppress(ValueError, TypeError, AttributeError):
                    time, sizes = json.loads(line)
                    for task, size in sizes.items():
                        self._add(task, float(time), int(size))

    def _add(self, task: str, time: float, size: int) -> None:
        files = self.of(task)
        if files[-1].sizes and size < files[-1].sizes[-1]:
            files.append(Growth())
        times = files[-1].times
        # Somebody may set the machine's clock back: a log's own order stays.
        times.append(max(time, times[-1]) if times else time)
        files[-1].sizes.append(size)
