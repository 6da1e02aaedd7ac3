"""What all tasks do after the same training step: save their state, or exit because a stop was requested.

A stop request is a file in the run's directory, so it works even if no signal can be sent or delivered. The first task looks
for requests between two steps and writes down the step after which every task acts: the one after the next. In training in
lockstep no task is further than that when the file appears, because no step ends before every task has taken part in it.
The files are numbered, and a task acts on them in that order.

Tasks without a common folder exchange these entries over a network, where an entry may become visible to some tasks only
after the next step. There, every entry names the next step at which there may be something to do, and no task goes past a
step whose entry it does not have: see the bucket rendezvous.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from ...job.layout import RunPaths
from ...logs import logger
from ...storage import posix

_log = logger("runtime")

# "epoch": the end of the epoch that this step belongs to is saved.
Action = Literal["save", "epoch", "stop", "preempt"]
SAVING = ("save", "epoch")
# Returns what makes a checkpoint due now, if anything.
Due = Callable[[], Literal["save", "epoch"] | None]
# "go" is the entry of a step after which nothing is done.
ActionOrGo = Literal["save", "epoch", "stop", "preempt", "go"]
ScheduledAction = tuple[int, ActionOrGo]

_AHEAD = 2
_SENTENCES = {
    "stop": "the run was asked to stop: this task leaves its loop after step",
    "preempt": "this machine is being preempted: this task saves its state and exits after step",
}


def nothing_due() -> None:
    """The `Due` of a task that saves nothing."""


def never() -> bool:
    """The `apart` of tasks that step together."""
    return False


class Rendezvous(Protocol):
    """One task's view of the actions that all tasks have agreed on.

    Attributes:
        count: number of completed steps; raised before every call of `next`.
        save_due: what decides that a checkpoint is due; asked by the first task only.
        apart: whether the tasks train without a connection, each at its own pace.
    """

    count: int
    save_due: Due
    apart: Callable[[], bool]

    def begin(self) -> None:
        """Called when a training loop begins."""

    def next(self) -> ScheduledAction | None:
        """Return the next entry, or None if there is none yet and it is safe to go on."""

    def request_preemption(self) -> None:
        """Tell all tasks that the machine of this one is being preempted. Called from a signal handler."""

    def close(self) -> None:
        """Called when this task will not ask again."""


@dataclass(kw_only=True)
class FileRendezvous:
    """The rendezvous of tasks that share the run's directory."""

    paths: RunPaths
    attempt: int
    task: str
    decides: bool  # True in the first task
    is_single: bool  # True if there is no other task, and so nothing to agree on

    def __post_init__(self) -> None:
        self._agreed = self.count = 0
        self.save_due: Due = nothing_due
        self.apart: Callable[[], bool] = never
        # An earlier supervisor has handled these requests.
        self._handled = len(posix.list_names(self.paths.control))

    def begin(self) -> None:
        pass

    def close(self) -> None:
        pass

    def next(self) -> ScheduledAction | None:
        return self._decide() if self.decides else self._read()

    def _decide(self) -> ScheduledAction | None:
        action = self._requested()
        if action is None:
            return None
        # Only the first one of tasks without a connection is saved, and none of them has to wait for a step of another.
        is_single = self.is_single or self.apart()
        at = self.count + (0 if is_single else _AHEAD)
        self._agreed += not is_single or action not in SAVING
        if not is_single or action not in SAVING:
            with suppress(FileExistsError):
                data = {"step": at, "action": action}
                posix.put_passing(self._file(self._agreed), json.dumps(data).encode())
        return at, action

    def _requested(self) -> Action | None:
        # Usually the folder does not exist, and this costs one system call.
        control = self.paths.control
        if os.path.isdir(control) and len(posix.list_names(control)) > self._handled:
            return "stop"
        if os.path.isdir(self.paths.preempted(self.attempt)):
            return "preempt"
        return self.save_due()

    def _read(self) -> ScheduledAction | None:
        try:
            data = json.loads(Path(self._file(self._agreed + 1)).read_bytes())
            self._agreed += 1
            return (self.count if self.apart() else int(data["step"])), data["action"]
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _file(self, number: int) -> str:
        return self.paths.rendezvous(self.attempt, number)

    def request_preemption(self) -> None:
        if os.path.exists(self.paths.decided(self.attempt)):
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)
        # A second SIGTERM, or a full disk: another task's request or SIGKILL will follow.
        with suppress(OSError):
            posix.put_passing(f"{self.paths.preempted(self.attempt)}/{self.task}.json", b"{}")


def stop_agreed(paths: RunPaths, attempt: int) -> bool:
    """Return whether tasks that share the run's directory have agreed to stop."""
    folder = Path(paths.rendezvous(attempt, 0)).parent
    return any(json.loads((folder / name).read_bytes())["action"] == "stop" for name in posix.list_names(str(folder)))


class StepCoordinator:
    """Counts the steps of one task and returns the action after each."""

    def __init__(self, rendezvous: Rendezvous) -> None:
        self.rendezvous = rendezvous
        self._next: ScheduledAction | None = None
        self.exit_action: Action | None = None  # why this task has to leave its loop; None as long as it does not

    def step(self) -> Action | None:
        """Count a step, and return what all tasks do after it."""
        if self.exit_action is not None:
            return self.exit_action
        self.rendezvous.count += 1
        count = self.rendezvous.count
        if self._next is None:
            self._next = self.rendezvous.next()
        if self._next is None or count < self._next[0]:
            return None
        at, action = self._next
        self._next = None
        if action == "go":
            return None
        if action not in SAVING:
            self.exit_action = action
            _log.info(f"{_SENTENCES[action]} {max(at, count)} of this attempt")
        return action

    def handle_sigterm(self) -> None:
        """Treat SIGTERM as a preemption from now on. Call it in the main thread at the beginning of every loop.

        TensorFlow installs its own handler when a cluster starts, which is why one call is not enough. A task outside of a
        loop, or one whose attempt is already decided, ends at once.
        """
        self.rendezvous.begin()
        with suppress(ValueError):  # not the main thread: the handler stays as it is
            signal.signal(signal.SIGTERM, lambda number, frame: self.rendezvous.request_preemption())

    def reset_sigterm(self) -> None:
        """Let SIGTERM end the task again."""
        with suppress(ValueError):
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
