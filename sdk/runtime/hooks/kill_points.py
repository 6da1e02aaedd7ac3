"""Kills this task at the points that a drill has chosen: each once, in the first attempt that reaches it."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from ...spec.layout import RunPaths
from ...spec.payload import Kill
from ...storage import posix


class KillPoints:
    """The kill points of one task. `kills` are those of all tasks."""

    def __init__(self, paths: RunPaths, attempt: int, task: str, kills: Sequence[Kill]) -> None:
        self._paths, self._attempt, self._task = paths, attempt, task
        self._step: int | None = None
        self._pending = {
            index: (kill.point, kill.number)
            for index, kill in enumerate(kills)
            if kill.task == task and not os.path.exists(paths.kill(index))
        }
        self._counts: dict[str, int] = {}
        with suppress(FileNotFoundError):
            self._counts.update(json.loads(Path(paths.kill_points(task)).read_bytes()) if self._pending else {})

    def reached(self, point: str, number: int | None = None) -> None:
        """Kill this task if a kill is due; `number` is the step, or how often the point was reached, counted if None."""
        if not self._pending:
            return
        if point == "step":
            self._step = number
        if number is None:
            number = self._count(point)
        # An execution of several steps may skip a number: the kill follows after the execution.
        due = [index for index, (name, wanted) in self._pending.items() if name == point and wanted <= number]
        if not due:
            return
        data = {"number": number, "step": self._step, "attempt": self._attempt, "time": time.time()}
        posix.put_passing(self._paths.kill(due[0]), json.dumps(data).encode())
        os.kill(os.getpid(), signal.SIGKILL)

    def _count(self, point: str) -> int:
        self._counts[point] = number = self._counts.get(point, 0) + 1
        target = Path(self._paths.kill_points(self._task))
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(f".{target.name}.part")
        part.write_text(json.dumps(self._counts))
        # Atomic: wherever this attempt is killed, the next one reads the old counts or the new ones.
        part.replace(target)
        return number
