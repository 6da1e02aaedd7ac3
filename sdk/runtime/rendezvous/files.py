"""What all tasks do behind the same step: save their state, and end because somebody has asked for it.

A wish to end is a file in the run's directory, so that it works where nobody can send a signal, or where none would be
delivered. The first task looks for wishes between two steps, and writes down behind which step everybody does what: the
one after the next. In training in lockstep no task is further than that when the file appears, because no step ends before
every task has taken part in it. What is agreed is numbered, and nobody does the second thing before the first.

Where the tasks share no folder, the entries come over a network, and a file that appears is seen by some of them later than
the next step. There every entry names the next step at which there may be something to do, and nobody goes past a step whose
entry it does not have: see container/board.py.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Literal, Protocol

from ...spec.layout import RunPaths
from ...storage import posix

# "epoch": the end of the epoch that this step belongs to is saved.
Action = Literal["save", "epoch", "stop", "preempt"]
SAVING = ("save", "epoch")
# What wants a checkpoint now.
Due = Callable[[], Literal["save", "epoch"] | None]
# "go" is an entry of a step behind which nothing is done.
Entry = tuple[int, Literal["save", "epoch", "stop", "preempt", "go"]]

_AHEAD = 2
_SENTENCES = {
    "stop": "the run is to end: this task leaves its loop behind step",
    "preempt": "this machine is wanted back: this task saves its state and leaves behind step",
}


def nothing_due() -> None:
    """Want no checkpoint."""


class Entries(Protocol):
    """Where what is agreed on is written down, and where wishes come from, for one task.

    Attributes:
        count: how many steps are over; it is told before every question.
        save_due: says what wants a checkpoint now; only the first task asks it.
    """

    count: int
    save_due: Due

    def begin(self) -> None:
        """A loop begins."""

    def next(self) -> Entry | None:
        """Return the next entry; None where there is none yet, and it is safe to go on."""

    def want_back(self) -> None:
        """The machine of this task is wanted back. It is called by a handler of signals."""

    def close(self) -> None:
        """This task will ask nothing more."""


class Files:
    """Entries in a folder that all tasks see.

    Args:
        paths: the run.
        attempt: which attempt this is.
        task: this task's name.
        decides: True in the first task.
        alone: True where there is no other task: then there is nothing to agree on.
    """

    def __init__(self, paths: RunPaths, attempt: int, task: str, *, decides: bool, alone: bool) -> None:
        self._paths = paths
        self._attempt = attempt
        self._task = task
        self._decides = decides
        self._alone = alone
        self._agreed = 0
        self.count = 0
        self.save_due: Due = nothing_due
        # An earlier supervisor has fulfilled these.
        self._old = len(posix.list_names(paths.control))

    def begin(self) -> None:
        """There is nothing to begin."""

    def close(self) -> None:
        """There is nothing to end."""

    def next(self) -> Entry | None:
        return self._decide() if self._decides else self._find()

    def _decide(self) -> Entry | None:
        action = self._wish()
        if action is None:
            return None
        at = self.count + (0 if self._alone else _AHEAD)
        self._agreed += 1
        if not self._alone or action not in SAVING:
            with suppress(FileExistsError):
                data = {"step": at, "action": action}
                posix.put_passing(self._file(self._agreed), json.dumps(data).encode())
        return at, action

    def _wish(self) -> Action | None:
        # A folder that is not there holds no wish, and costs one call of the system.
        control = self._paths.control
        if os.path.isdir(control) and len(posix.list_names(control)) > self._old:
            return "stop"
        if os.path.isdir(self._paths.preempted(self._attempt)):
            return "preempt"
        return self.save_due()

    def _find(self) -> Entry | None:
        try:
            data = json.loads(Path(self._file(self._agreed + 1)).read_bytes())
            self._agreed += 1
            return int(data["step"]), data["action"]
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _file(self, number: int) -> str:
        return self._paths.rendezvous(self._attempt, number)

    def want_back(self) -> None:
        if os.path.exists(self._paths.decided(self._attempt)):
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)
        with suppress(OSError):  # twice told, or a disk that takes nothing: the other tasks' wish or SIGKILL will come
            posix.put_passing(f"{self._paths.preempted(self._attempt)}/{self._task}.json", b"{}")


class Agreement:
    """One task's part in it.

    Args:
        entries: what is agreed on; None for a process that belongs to no run.
        log: takes a line when the task is to leave.
    """

    def __init__(self, entries: Entries | None, log: Callable[[str], None]) -> None:
        self._entries = entries
        self._log = log
        self._count = 0
        self._next: Entry | None = None
        self._leaving: Action | None = None

    @property
    def leaving(self) -> Action | None:
        """Why the task is to leave its loop, as soon as that is so."""
        return self._leaving

    def ask_when_due(self, save_due: Due) -> None:
        """Say what wants a checkpoint now; only the first task asks it."""
        if self._entries is not None:
            self._entries.save_due = save_due

    def step(self) -> Action | None:
        """Note the end of a step, and return what all tasks are to do behind it."""
        self._count += 1
        if self._entries is None or self._leaving is not None:
            return self._leaving
        self._entries.count = self._count
        if self._next is None:
            self._next = self._entries.next()
        if self._next is None or self._count < self._next[0]:
            return None
        at, action = self._next
        self._next = None
        if action == "go":
            return None
        if action not in SAVING:
            self._leaving = action
            self._log(f"{_SENTENCES[action]} {max(at, self._count)}")
        return action

    def listen(self) -> None:
        """Take SIGTERM for the wish of whoever owns the machine to have it back. Call it in the main thread.

        TensorFlow takes the signal for itself when a cluster starts, so this is called at every loop's beginning. A task
        that is in no loop, or that its supervisor ends because the attempt is over, ends at once.
        """
        if self._entries is not None:
            self._entries.begin()
            with suppress(ValueError):  # a loop in another thread: the signal stays whose it is
                signal.signal(signal.SIGTERM, self._told)

    def _told(self, number: int, frame: FrameType | None) -> None:
        assert self._entries is not None  # noqa: S101
        self._entries.want_back()

    def deaf(self) -> None:
        """End listening: from here on SIGTERM ends the task."""
        if self._entries is not None:
            with suppress(ValueError):
                signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def close(self) -> None:
        """Say that this task will do no more steps: nobody is to wait for what it agrees to."""
        if self._entries is not None:
            self._entries.close()
