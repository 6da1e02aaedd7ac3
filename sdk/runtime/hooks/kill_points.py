"""Kills this task at the points that a drill has chosen: each once, in the first attempt that reaches it."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence

from ...job.payload import Kill
from ...records.kills import Done, KillRecords

# The emulator reads the announcement of a kill at once.
_WAIT_S = 60.0


class KillPoints:
    """The kill points of one task. `kills` are those of all tasks."""

    def __init__(self, records: KillRecords, attempt: int, task: str, kills: Sequence[Kill]) -> None:
        self._records, self._attempt, self._task = records, attempt, task
        self._step: int | None = None
        self._pending = {
            index: kill for index, kill in enumerate(kills) if kill.task == task and records.done(index) is None
        }
        self._counts = records.counts(task) if self._pending else {}

    def reached(self, point: str, number: int | None = None) -> None:
        """Kill this task if a kill is due; `number` is the step, or how often the point was reached, counted if None."""
        if not self._pending:
            return
        if point == "step":
            self._step = number
        if number is None:
            self._counts[point] = number = self._counts.get(point, 0) + 1
            self._records.write_counts(self._task, self._counts)
        # An execution of several steps may skip a number: the kill follows after the execution.
        due = [index for index, kill in self._pending.items() if kill.point == point and kill.number <= number]
        if not due:
            return
        kill = self._pending.pop(due[0])
        self._records.add(due[0], Done(step=self._step, attempt=self._attempt, time=time.time()))
        if kill.what == "process":
            os.kill(os.getpid(), signal.SIGKILL)
        self._announce(kill)

    def _announce(self, kill: Kill) -> None:
        """Let the emulator do it, which reads the output. A machine that is taken away has some time left."""
        sys.stdout.flush()
        # In one piece, and not at the end of another line.
        os.write(1, f"\n{kill.announcement}\n".encode())
        until = time.monotonic() + _WAIT_S
        while kill.what != "machine" and time.monotonic() < until:
            time.sleep(0.05)
        if kill.what != "machine":
            raise RuntimeError(f"The emulator did not end this container within {_WAIT_S:g} s of {kill}.")
