"""A task's progress: six numbers in a small file that the task writes and its supervisor and clients read.

The file is memory-mapped: a write at every step needs no system call, and survives a kill of the process.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path

from ..records.recorder import PROGRESS


class ProgressWriter:
    """Counts one task's steps. `path` is None for a process without a supervisor."""

    def __init__(self, path: str | None) -> None:
        self._pid = os.getpid()
        self._steps = self._beats = 0
        self._epoch = self._epochs = self._epoch_step = self._epoch_steps = 0
        self._map: mmap.mmap | None = None
        if path is not None:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            with Path(path).open("w+b") as file:
                file.write(bytes(PROGRESS.size))
                file.flush()
                self._map = mmap.mmap(file.fileno(), PROGRESS.size)

    def begin(self, steps: int) -> None:
        """Start from the steps of earlier attempts: steps are those of the run. This does not count as a sign of life."""
        self._steps = steps
        self._write()

    def epoch(self, number: int, of: int, steps: int) -> None:
        """Begin an epoch: its number from 1, the number of epochs, and its steps; 0 means unknown."""
        self._epoch, self._epochs, self._epoch_step, self._epoch_steps = number, of, 0, steps
        self._write()

    def step(self, count: int | None = None, of_epoch: int | None = None) -> None:
        """Count a completed training step, or set the number of all (`count`) and of this epoch (`of_epoch`)."""
        if of_epoch is not None:
            self._epoch_step = of_epoch
        self._steps = self._steps + 1 if count is None else max(0, int(count))
        self.beat()

    def beat(self) -> None:
        """Record a sign of life."""
        self._beats += 1
        self._write()

    def _write(self) -> None:
        # A process that the program forked must not count for the task.
        if self._map is not None and os.getpid() == self._pid:
            position = (self._epoch, self._epochs, self._epoch_step, self._epoch_steps)
            PROGRESS.pack_into(self._map, 0, self._steps, self._beats, *position)
