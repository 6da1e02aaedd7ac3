"""How far a task is, where its supervisor can see it: two numbers in a small file that only the task writes.

They are written through a memory map, because they change with every step: no call of the system is needed, and a process
that is killed leaves what it wrote.
"""

from __future__ import annotations

import mmap
import os
import struct
from pathlib import Path

# Training steps, and signs of life: those and the batches of evaluate and predict.
LAYOUT = struct.Struct("<QQ")


class Progress:
    """Counts one task's steps.

    Args:
        path: the file; None for a process that nobody watches.
    """

    def __init__(self, path: str | None) -> None:
        self._pid = os.getpid()
        self._steps = self._beats = 0
        self._map: mmap.mmap | None = None
        if path is not None:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            with Path(path).open("w+b") as file:
                file.write(LAYOUT.pack(0, 0))
                file.flush()
                self._map = mmap.mmap(file.fileno(), LAYOUT.size)

    def begin(self, steps: int) -> None:
        """Note that an earlier attempt has done so many steps: what is counted is the run's. It is no sign of life."""
        self._steps = steps
        self._write()

    def step(self, count: int | None = None) -> None:
        """Note that a training step is over, or that `count` of them are."""
        self._steps = self._steps + 1 if count is None else max(0, int(count))
        self.beat()

    def beat(self) -> None:
        """Note a sign of life."""
        self._beats += 1
        self._write()

    def _write(self) -> None:
        # What a program forks does not count for the task.
        if self._map is not None and os.getpid() == self._pid:
            LAYOUT.pack_into(self._map, 0, self._steps, self._beats)
