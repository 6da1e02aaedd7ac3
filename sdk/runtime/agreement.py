"""What all tasks do behind the same step: save their state, and end because somebody has asked for it.

A wish to end is a file in the run's directory, so that it works where nobody can send a signal, or where none would be
delivered. The first task looks for wishes between two steps, and writes down behind which step everybody does what: the
one after the next. In training in lockstep no task is further than that when the file appears, because no step ends before
every task has taken part in it. What is agreed is numbered, and nobody does the second thing before the first.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Literal

from ..layout import RunPaths
from ..storage import posix

Action = Literal["save", "stop", "preempt"]

_AHEAD = 2
_CALLBACKS = ("keras.src.callbacks.callback_list", "tf_keras.src.callbacks")
_SENTENCES = {
    "stop": "the run is to end: this task leaves its loop behind step",
    "preempt": "this machine is wanted back: this task saves its state and leaves behind step",
}


class Agreement:
    """One task's part in it.

    Args:
        paths: the run; None for a process that belongs to none.
        attempt: which attempt this is.
        task: this task's name.
        decides: True in the first task.
        alone: True where there is no other task: then there is nothing to agree on.
        log: takes a line when the task is to leave.
    """

    def __init__(
        self, paths: RunPaths | None, attempt: int, task: str, *, decides: bool, alone: bool, log: Callable[[str], None]
    ) -> None:
        self._paths = paths
        self._attempt = attempt
        self._task = task
        self._decides = decides
        self._alone = alone
        self._log = log
        self._count = self._agreed = 0
        self._next: tuple[int, Action] | None = None
        self._leaving: Action | None = None
        # What wants a checkpoint now; only the first task asks it.
        self.save_due: Callable[[], bool] = bool
        # An earlier supervisor has fulfilled these.
        self._old = 0 if paths is None else len(posix.list_names(paths.control))

    @property
    def leaving(self) -> Action | None:
        """Why the task is to leave its loop, as soon as that is so."""
        return self._leaving

    def step(self) -> Action | None:
        """Note the end of a step, and return what all tasks are to do behind it."""
        self._count += 1
        if self._paths is None or self._leaving is not None:
            return self._leaving
        if self._next is None:
            self._next = self._decide() if self._decides else self._find()
        if self._next is None or self._count < self._next[0]:
            return None
        at, action = self._next
        self._next = None
        if action != "save":
            self._leaving = action
            self._log(f"{_SENTENCES[action]} {max(at, self._count)}")
        return action

    def _decide(self) -> tuple[int, Action] | None:
        action = self._wish()
        if action is None:
            return None
        at = self._count + (0 if self._alone else _AHEAD)
        self._agreed += 1
        if not self._alone or action != "save":
            with suppress(FileExistsError):
                data = {"step": at, "action": action}
                posix.put_new(self._file(self._agreed), json.dumps(data).encode())
        return at, action

    def _wish(self) -> Action | None:
        paths = self._paths
        assert paths is not None  # noqa: S101
        # A folder that is not there holds no wish, and costs one call of the system.
        if os.path.isdir(paths.control) and len(posix.list_names(paths.control)) > self._old:  # noqa: PTH112
            return "stop"
        if os.path.isdir(paths.wanted_back(self._attempt)):  # noqa: PTH112
            return "preempt"
        return "save" if self.save_due() else None

    def _find(self) -> tuple[int, Action] | None:
        try:
            data = json.loads(Path(self._file(self._agreed + 1)).read_bytes())
            self._agreed += 1
            return int(data["step"]), data["action"]
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _file(self, number: int) -> str:
        assert self._paths is not None  # noqa: S101
        return self._paths.agreed(self._attempt, number)

    def listen(self) -> None:
        """Take SIGTERM for the wish of whoever owns the machine to have it back. Call it in the main thread.

        TensorFlow takes the signal for itself when a cluster starts, so this is called at every loop's beginning. A task
        that is in no loop, or that its supervisor ends because the attempt is over, ends at once.
        """
        if self._paths is not None:
            with suppress(ValueError):  # a loop in another thread: the signal stays whose it is
                signal.signal(signal.SIGTERM, self._told)

    def _told(self, number: int, frame: FrameType | None) -> None:
        paths = self._paths
        assert paths is not None  # noqa: S101
        if os.path.exists(paths.over(self._attempt)):  # noqa: PTH110
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)
        with suppress(OSError):  # twice told, or a disk that takes nothing: the other tasks' wish or SIGKILL will come
            posix.put_new(f"{paths.wanted_back(self._attempt)}/{self._task}.json", b"{}")

    def deaf(self) -> None:
        """End listening: from here on SIGTERM ends the task."""
        if self._paths is not None:
            with suppress(ValueError):
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
