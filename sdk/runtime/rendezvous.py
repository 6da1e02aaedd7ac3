"""The actions of all tasks of an attempt after the same training step: save their state, or leave their loop.

Tasks exchange nothing until an action is due. Then one of them asks, by creating a file that all of them look for.
Each task answers with its limit, a step that it does not go past before all agree; a thread answers, so that a task inside a
step does so too. The largest limit is the step after which all tasks act, and the first task writes it down. No task can be
further than its own limit, so this holds however late a file becomes visible to some of them, and however far a device runs
ahead of Python.

Tasks of one machine see a file at once: they look for it between steps, and the limit is the next step. Tasks that share a
bucket pay for each look. They look every other second, and their limits lie some seconds ahead, so that the training does not
wait while they agree.
"""

from __future__ import annotations

import json
import math
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Literal, NamedTuple, Protocol

from ..clock import Clock, SystemClock
from ..errors import PodliftError, StoreError
from ..job.layout import RunPaths
from ..job.payload import Payload
from ..job.wire import parsed
from ..logs import logger
from ..storage import posix

_log = logger("runtime")

# "epoch": the end of the epoch that this step belongs to is saved.
Action = Literal["save", "epoch", "stop", "preempt"]
# Returns the cause that makes a checkpoint due now, if any.
Due = Callable[[], Literal["save", "epoch"] | None]
SAVING = ("save", "epoch")
# Written by a first task that takes no more steps: the others continue without an agreement.
_END = "end"
# In a bucket, limits lie this many seconds ahead, but at most a tenth of the time since the first step: a short training
# would be over before. A save is not urgent; a machine that is preempted has 30 seconds.
_AHEAD_S, _URGENT_AHEAD_S, _AHEAD_SHARE = 4.0, 1.0, 0.1
# Steps are counted over the last few seconds: where a device lags behind Python, many end at once, and then none for a while.
_SAMPLE_S, _SAMPLES = 0.5, 8
# The time between two polls of a thread for a question: less at the beginning of a training. And for answers.
_QUIET_S, _QUIET_SHARE, _SOONEST_S, _ANSWER_POLL_S = 2.0, 0.05, 0.1, 0.5
# A list of answers costs as much as twelve reads: the first task makes few of them for a save, and checks late for tasks that
# are done.
_LIST_S, _LOOKS = 1.0, 4
# Tasks of one machine poll between steps: the thread only answers for one that is inside a long step.
_FALLBACK_S = 0.2
# How often a task that waits at its limit polls.
_WAITING_S, _WAITING_HERE_S = 0.1, 0.002
# Longer than anything that a task does between two steps.
_MAX_WAIT_S = 1800.0
_CLOSE_S = 60.0
# Tasks that step together never have an agreed step as far ahead of them as this: one that has goes at its own pace.
_APART_STEPS, _APART_S = 10, 10.0
# How often it is reported, at most, that this task cannot look.
_REPORT_S = 60.0
_SENTENCES = {
    "stop": "the run was asked to stop: this task leaves its loop after step",
    "preempt": "this machine is being preempted: this task saves its state and exits after step",
}


class Board(Protocol):
    """Where the tasks of one attempt read each other's files, which are created once.

    Attributes:
        is_instant: whether every task sees a file as soon as it exists, and looking for it costs next to nothing.
    """

    is_instant: bool

    def create(self, name: str, content: Mapping[str, object]) -> bool:
        """Create a file; return False if it exists."""

    def read(self, name: str) -> Mapping[str, object] | None:
        """Return the content of a file, None if it does not exist."""

    def names(self, folder: str) -> list[str]:
        """Return the names of the files in a folder."""

    def is_stop_requested(self) -> bool:
        """Return whether a request to stop the run exists. Called by the first task only."""


class FolderBoard:
    """The board of tasks on one machine: a folder in the run's directory. It works even if no signal can be delivered.

    Earlier supervisors have `handled` that many cancel requests.
    """

    is_instant = True

    def __init__(self, paths: RunPaths, attempt: int, handled: int = 0) -> None:
        self._folder, self._control, self._handled = paths.rendezvous(attempt), paths.control, handled

    def create(self, name: str, content: Mapping[str, object]) -> bool:
        try:
            posix.put_passing(f"{self._folder}/{name}", json.dumps(content).encode())
        except FileExistsError:
            return False
        return True

    def read(self, name: str) -> Mapping[str, object] | None:
        path = f"{self._folder}/{name}"
        try:
            os.stat(path)  # after each step: most often there is nothing, and this is half as long as to read
        except FileNotFoundError:
            return None
        content: dict[str, object] = parsed(Path(path).read_bytes())
        return content

    def names(self, folder: str) -> list[str]:
        return posix.list_names(f"{self._folder}/{folder}")

    def is_stop_requested(self) -> bool:
        # Usually the folder does not exist, and this costs one system call.
        return os.path.isdir(self._control) and len(posix.list_names(self._control)) > self._handled


class Agreed(NamedTuple):
    """The action of all tasks after a step."""

    step: int
    action: str


@dataclass
class Question:
    """The shared state of the training and the thread about the open question, or the next one."""

    number: int
    due: Literal["save", "epoch"] | None = None  # the question that the first task will write
    action: str = ""  # as it was asked
    step: int = 0  # of the task that asked
    limit: int | None = None  # this task does not go past it before all agree
    has_answered: bool = False
    looks: int = 0  # of the first task, for answers
    written: Mapping[str, object] | None = None  # the agreement of the first task, also for a repeated write
    agreed: Agreed | None = None
    following: Question | None = None  # the question of this task as soon as all have saved


class StepCoordinator:
    """Counts the steps of one task, and returns the action after each.

    Args:
        board: shared by the tasks.
        task: this task.
        tasks: the tasks that step together, the first task first.
        decided: a file that exists once the attempt is decided: SIGTERM then ends the task at once.
        clock: the time.

    Attributes:
        save_due: decides whether a checkpoint is due; the first task calls it after each step.
        apart: whether the tasks train without a connection, each at its own pace.
        exit_action: why this task has to leave its loop; None as long as it does not.
    """

    def __init__(
        self, board: Board, task: str, tasks: Sequence[str], *, decided: str = "", clock: Clock | None = None
    ) -> None:
        self._board, self._task, self._tasks, self._decided = board, task, tasks, decided
        self._clock = clock or SystemClock()
        self._is_first, self._is_single = task == tasks[0], len(tasks) == 1
        self.save_due: Due = lambda: None
        self.apart: Callable[[], bool] = lambda: False
        self.exit_action: Action | None = None
        # The count and the limit change under this lock. Nothing waits while it is held.
        self._lock, self._looking = threading.Lock(), threading.Lock()
        self._count, self._first_step_time = 0, math.inf
        self._samples = deque[tuple[float, int]](maxlen=_SAMPLES)  # a time, and the count then
        # The training replaces it as a whole: a late write of the thread into an old one has no effect.
        self._question = Question(1)
        self._error: Exception | None = None  # of the last look
        self._report_due = -math.inf
        # Set by the training, by the thread and by the handler of SIGTERM.
        self._is_preempted = self._is_stopped = self._is_waiting = self._is_over = False
        self._thread: threading.Thread | None = None
        self._wake = SimpleQueue[None]()  # unlike an Event, a handler may use it at any moment
        self._pid = os.getpid()

    # --- Called by the training

    def begin(self) -> None:
        """Start the thread, if this task needs one."""
        if self._thread is None and not (self._is_single and self._board.is_instant):
            self._thread = threading.Thread(target=self._serve, name="podlift-rendezvous", daemon=True)
            self._thread.start()

    def step(self) -> Action | None:
        """Count a step, and return the action of all tasks after it."""
        if self.exit_action is not None:
            return self.exit_action
        self.begin()
        now = self._clock.monotonic()
        with self._lock:
            self._count += 1
        if not self._samples or now - self._samples[-1][0] >= _SAMPLE_S:
            self._samples.append((now, self._count))
        if self._first_step_time > now:
            self._first_step_time = now
            self._wake.put(None)
        action = self._step_single() if self._is_single else self._step_together()
        if action in ("stop", "preempt"):
            self.exit_action = action
            _log.info(f"{_SENTENCES[action]} {self._count} of this attempt")
        return action

    def close(self) -> None:
        """Let the other tasks continue without this one, which takes no more steps."""
        self._is_over = True
        self._wake.put(None)
        if self._thread is not None:
            self._thread.join(_CLOSE_S)
        if self._is_single:
            return
        with suppress(PodliftError, OSError):  # a task that waits for this one reports it later
            if not self._is_first:
                self._board.create(closed(self._task, self._count), {})
                return
            end = {"step": self._count, "action": _END}
            # The others may still be on their way to the step of an earlier agreement.
            first = self._question.number
            any(self._board.create(_agreed(number), end) for number in (first, first + 1))

    def _step_single(self) -> Action | None:
        if self._is_stopped or (self._board.is_instant and self._board.is_stop_requested()):
            return self._leave("stop")
        return self._leave("preempt") if self._is_preempted else self.save_due()

    def _leave(self, action: Literal["stop", "preempt"]) -> Action:
        """Leave the loop without the others. The agent on this machine reads why."""
        if self._board.is_instant:
            with suppress(OSError):  # a full disk is reported where it matters
                self._board.create(_agreed(self._question.number), {"step": self._count, "action": action})
        return action

    def _step_together(self) -> Action | None:
        question = self._question
        if self._is_first and not question.action and question.due is None and (due := self.save_due()) is not None:
            if self.apart():
                return due  # the first task alone is saved, and waits for no step of another
            self._set_limit(question, due)
            question.due = due
            self._wake.put(None)
        if self._board.is_instant:
            self.look()
        if question.action and self.apart():
            # No step of one task is a step of another.
            if self._is_first and question.action not in SAVING:
                self._leave(question.action)  # type: ignore[arg-type]
            return self._done(question)
        self._wait_for_agreement(question)
        if question.agreed is None or (self._count < question.agreed.step and not self._is_slow(question.agreed)):
            return None
        if question.agreed.action == _END:
            self._is_over = True
            return None
        return self._done(question)

    def _is_slow(self, agreed: Agreed) -> bool:
        """Return whether this task would leave its loop so much later than others that its time to stop might be over."""
        steps = agreed.step - self._count
        if agreed.action in (*SAVING, _END) or steps <= _APART_STEPS:
            return False
        now, (since, count) = self._clock.monotonic(), self._samples[0]
        # Neither a slow beginning nor a pause a moment ago makes a task slow.
        each_s = min((now - self._first_step_time) / self._count, (now - since) / max(1, self._count - count))
        return steps * each_s > _APART_S

    def _done(self, question: Question) -> Action:
        action: Action = question.action  # type: ignore[assignment]
        if action not in SAVING:
            self.exit_action = action  # first: a task that leaves writes no more questions
        self._question = question.following or Question(question.number + 1)
        self._wake.put(None)
        return action

    def _wait_for_agreement(self, question: Question) -> None:
        """Wait while this task is at its limit, and the tasks have not agreed."""
        until = self._clock.monotonic() + _MAX_WAIT_S
        while not self._is_over and question.agreed is None:
            with self._lock:
                if question.limit is None or self._count < question.limit:
                    break
            if self._clock.monotonic() >= until:
                raise self._error or StoreError(
                    f"The tasks did not agree within {_MAX_WAIT_S:g} s on an action after step {self._count}: "
                    f"{self._missing(question)}. Is it in another loop, or does its loop not call should_stop()?"
                )
            self._is_waiting = True
            if self._board.is_instant:
                self.look()
            else:
                self._wake.put(None)
            self._clock.sleep(_WAITING_HERE_S if self._board.is_instant else _WAITING_S)
        self._is_waiting = False

    def _set_limit(self, question: Question, action: str) -> int:
        with self._lock:
            if question.limit is None:
                # From the step of the question: a task that finds it late must not delay the action of all.
                from_step = question.step if question.action else self._count
                question.limit = max(self._count + 1, from_step + self._ahead(action))
            return question.limit

    def _ahead(self, action: str) -> int:
        """Return by how many steps a limit lies ahead."""
        if self._board.is_instant or self._first_step_time == math.inf:
            return 1
        now, (since, count) = self._clock.monotonic(), self._samples[0]
        seconds = min(_AHEAD_S if action in SAVING else _URGENT_AHEAD_S, (now - self._first_step_time) * _AHEAD_SHARE)
        return max(1, int(seconds * (self._count - count) / max(now - since, 1e-6)))

    # --- Called by the thread, and by the training where a look costs next to nothing

    def _serve(self) -> None:
        while not self._is_over:
            with suppress(Empty):
                self._wake.get(timeout=self._interval_s())
            self.look()

    def _interval_s(self) -> float:
        if self._board.is_instant:
            return _FALLBACK_S
        if action := self._question.action:
            asked_s = _LIST_S if self._is_first and action in SAVING else _ANSWER_POLL_S
            return _SOONEST_S if self._is_waiting else asked_s
        if self._first_step_time == math.inf:
            return _QUIET_S
        return min(_QUIET_S, max(_SOONEST_S, (self._clock.monotonic() - self._first_step_time) * _QUIET_SHARE))

    def look(self) -> None:
        """Do the due action once: ask, answer or agree."""
        if not self._looking.acquire(blocking=False):
            return
        try:
            self._look(self._question)
            self._error = None
        except Exception as error:  # the training continues until it needs the result of this poll
            if self._clock.monotonic() >= self._report_due:
                self._report_due = self._clock.monotonic() + _REPORT_S
                _log.info(f"cannot agree with the other tasks now: {type(error).__name__}: {error}")
            self._error = error
            if self._board.is_instant:
                self._withdraw(self._question)
        finally:
            self._looking.release()

    def _withdraw(self, question: Question) -> None:
        """Let the training continue if the question for a save cannot be written: a full disk must not end it."""
        with self._lock:
            if not question.action:
                question.due = question.limit = None

    def _look(self, question: Question) -> None:
        if self._is_first and question.action in ("", *SAVING) and not self._is_stopped:
            self._is_stopped = self._board.is_stop_requested()
        if self._is_single or not (question.action or self._ask(question)):
            return
        if not question.has_answered:
            limit = self._set_limit(question, question.action)
            self._board.create(f"{question.number:06d}/{self._task}.{limit}.json", {})
            question.has_answered = True
        if question.agreed is None:
            agreed = self._agree(question) if self._is_first else self._board.read(_agreed(question.number))
            if agreed is not None:
                question.agreed = Agreed(int(str(agreed["step"])), str(agreed["action"]))
        if question.action in SAVING and (self._is_stopped or self._is_preempted):
            question.following = question.following or Question(question.number + 1)
            if not question.following.action:
                self._ask(question.following)

    def _ask(self, question: Question) -> bool:
        """Ask, or find the question of another task; return whether there is one."""
        wish = "stop" if self._is_stopped else "preempt" if self._is_preempted else question.due
        if self.exit_action is not None:
            wish = None
        proposal: Mapping[str, object] | None = {"action": wish, "step": self._count, "task": self._task}
        name = f"{question.number:06d}.question.json"
        if wish is None or not self._board.create(name, proposal or {}):
            proposal = self._board.read(name)
        if proposal is None:
            return False
        question.step, question.action = int(str(proposal["step"])), str(proposal["action"])
        return True

    def _agree(self, question: Question) -> Mapping[str, object] | None:
        """Write down the largest limit as the step, once every task has named its own or is closed."""
        if question.written is None:
            question.looks += 1
            limits = self._limits(f"{question.number:06d}")
            missing, step = {*self._tasks} - limits.keys(), max(limits.values(), default=0)
            if missing:
                if question.looks <= _LOOKS and not self._board.is_instant:
                    return None
                closed = self._limits("closed")
                if missing - closed.keys():
                    return None
                # The last step of a task that did not find the question: the others must not act after that step either.
                step += any(closed[task] > step for task in missing)
            # On one machine the step is always the second one after the question, however the tasks are scheduled.
            least = question.step + 2 if self._board.is_instant else 0
            question.written = {"step": max(least, step), "action": question.action}
        agreed, name = question.written, _agreed(question.number)
        if not self._board.create(name, agreed) and self._board.read(name) != agreed:
            raise StoreError(f"Another process has written {name} of this attempt. Was the run started twice?")
        return agreed

    def _limits(self, folder: str) -> dict[str, int]:
        named = (name.removesuffix(".json").rpartition(".") for name in self._board.names(folder))
        return {task: int(limit) for task, _, limit in named}

    def _missing(self, question: Question) -> str:
        with suppress(PodliftError, OSError):
            if missing := [task for task in self._tasks if task not in self._limits(f"{question.number:06d}")]:
                return f"{', '.join(missing)} did not answer"
        return f"{self._tasks[0]} did not answer"

    # --- SIGTERM

    def request_preemption(self) -> None:
        """Make all tasks save and exit: the machine of this one is being preempted. A handler may call it at any moment."""
        if os.getpid() != self._pid or (self._decided and os.path.exists(self._decided)):
            # A process that the program forked, or a task that is being stopped.
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)
        self._is_preempted = True
        self._wake.put(None)

    def handle_sigterm(self) -> None:
        """Treat SIGTERM as a preemption from now on. Call it in the main thread at the beginning of every loop.

        TensorFlow installs its own handler when a cluster starts, which is why one call is not enough. A task outside of a
        loop, or one whose attempt is already decided, ends at once.
        """
        self.begin()
        with suppress(ValueError):  # not the main thread: the handler stays as it is
            signal.signal(signal.SIGTERM, lambda number, frame: self.request_preemption())

    def reset_sigterm(self) -> None:
        """Let SIGTERM end the task again."""
        with suppress(ValueError):
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def coordinator(payload: Payload, task: str, tasks: Sequence[str]) -> StepCoordinator:
    """Return the coordinator of a task of an attempt, for the tasks that step together."""
    paths, clock = RunPaths(payload.run_url), SystemClock()
    board: Board = FolderBoard(paths, payload.attempt, payload.cancels)
    if payload.bucket_url:
        from .store_board import StoreBoard

        board = StoreBoard(payload, clock)
    together = tasks if task in tasks else [task]
    step_coordinator = StepCoordinator(board, task, together, decided=paths.decided(payload.attempt), clock=clock)
    if len(together) > 1:
        # Before the first loop, so that a task that has not begun its own does not keep the others waiting.
        step_coordinator.begin()
    return step_coordinator


def stop_agreed(paths: RunPaths, attempt: int) -> bool:
    """Return whether tasks of this machine have agreed to stop."""
    folder = paths.rendezvous(attempt)
    names = [name for name in posix.list_names(folder) if name.endswith(".agreed.json")]
    return any(parsed(Path(folder, name).read_bytes())["action"] == "stop" for name in names)


def _agreed(number: int) -> str:
    return f"{number:06d}.agreed.json"


def closed(task: str, steps: int) -> str:
    """Return the file that lets the others continue without a task that takes no more steps."""
    return f"closed/{task}.{steps + 1}.json"
