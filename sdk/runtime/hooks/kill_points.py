"""Kills this task at the moments that a drill has chosen: each once, in whichever attempt gets there first."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...spec.layout import RunPaths
from ...storage import posix


class Kills:
    """The kills of one task.

    Args:
        paths: the run.
        attempt: which attempt this is.
        task: this task's name.
        wanted: all kills, as `sdk.drill.kills.Kill` has them.
    """

    def __init__(self, paths: RunPaths, attempt: int, task: str, wanted: Sequence[Mapping[str, Any]]) -> None:
        self._paths = paths
        self._attempt = attempt
        self._task = task
        self._step: int | None = None
        self._left = {
            index: (kill["moment"], kill["number"])
            for index, kill in enumerate(wanted)
            if kill["task"] == task and not os.path.exists(paths.kill(index))
        }
        self._counts = _read_counts(paths.kill_points(task)) if self._left else {}

    def at(self, moment: str, number: int | None = None) -> None:
        """Say that a moment has come; this may be the last thing that the task does.

        Args:
            moment: its name.
            number: which one it is; None to count.
        """
        if not self._left:
            return
        if moment == "step":
            self._step = number
        if number is None:
            number = self._count(moment)
        # An execution of several steps goes past a number: what was to happen at it happens behind the execution.
        due = [index for index, (name, wanted) in self._left.items() if name == moment and wanted <= number]
        if not due:
            return
        data = {"number": number, "step": self._step, "attempt": self._attempt, "time": time.time()}
        posix.put_passing(self._paths.kill(due[0]), json.dumps(data).encode())
        os.kill(os.getpid(), signal.SIGKILL)

    def _count(self, moment: str) -> int:
        self._counts[moment] = number = self._counts.get(moment, 0) + 1
        target = Path(self._paths.kill_points(self._task))
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(f".{target.name}.part")
        part.write_text(json.dumps(self._counts))
        # A rename: the next attempt reads the old counts or the new ones, wherever this one is killed.
        part.replace(target)
        return number


def _read_counts(path: str) -> dict[str, int]:
    try:
        return dict(json.loads(Path(path).read_bytes()))
    except FileNotFoundError:
        return {}
