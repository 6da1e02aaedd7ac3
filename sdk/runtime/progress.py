"""How far a task is, where its supervisor and every client can see it: six numbers in a small file that only the task writes.

They are written through a memory map, because they change with every step: no call of the system is needed, and a process
that is killed leaves what it wrote.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path

from ..records.recorder import PROGRESS


class Progress:
    """Counts one task's steps.

    Args:
        path: the file; None for a process that nobody watches.
    """

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
        """Note that an earlier attempt has done so many steps: what is counted is the run's. It is no sign of life."""
        self._steps = steps
        self._write()

    def epoch(self, number: int, of: int, steps: int) -> None:
        """Note that an epoch begins: its number from 1, after which one `fit` ends, and its steps; 0 is unknown."""
        self._epoch, self._epochs, self._epoch_step, self._epoch_steps = number, of, 0, steps
        self._write()

    def step(self, count: int | None = None, of_epoch: int | None = None) -> None:
        """Note that a training step is over, or that `count` of them are, and `of_epoch` of this epoch."""
        if of_epoch is not None:
            self._epoch_step = of_epoch
        self._steps = self._steps + 1 if count is None else max(0, int(count))
        self.beat()

    def beat(self) -> None:
        """Note a sign of life."""
        self._beats += 1
        self._write()

    def _write(self) -> None:
        # What a program forks does not count for the task.
        if self._map is not None and os.getpid() == self._pid:
            where = (self._epoch, self._epochs, self._epoch_step, self._epoch_steps)
            PROGRESS.pack_into(self._map, 0, self._steps, self._beats, *where)
