"""How an attempt ends: pure decisions about exit codes, records and time, which every agent makes alike.

An agent owns some of the tasks of a run: all of them on a laptop, one in a container. It waits for the records of tasks that it
does not own.
"""

from __future__ import annotations

import signal
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from ..job import cluster
from ..job.policies import Limits
from ..process import exit_reasons
from ..records import exits
from ..records.events import Event, first_failure, is_collateral, is_disk_full, is_lost_peer, message_of, reason_of
from ..records.exits import OutOfMemory
from ..records.verdicts import CHECKPOINTED, SUCCEEDED, AttemptEnd, failed
from ..status import EXIT_CHECKPOINTED, Failure, Reason, State
from ..text import compact_duration

# How often an agent polls its tasks.
POLL_S = 0.05
# The signal handler writes the stacks within milliseconds and needs no lock of Python.
STACKS_S = 0.5
# Tasks that are stopped because another one decided the attempt have no result to write.
DECIDED_GRACE_S = 2.0
# The least time of a task for its part of a common save, after another task has left with 75.
SAVING_S = 30.0
# Of the output of a program that exits with a number.
_LAST_LINES = 5
# No single task has caused these ends.
OF_ALL_TASKS = (Reason.HUNG, Reason.ACCELERATOR_IDLE, Reason.TIMEOUT)
# On SIGTERM a task may save its state for these reasons; otherwise the attempt is decided, or it had its time already.
_MAY_SAVE = {Reason.TIMEOUT, Reason.INFRASTRUCTURE, Reason.ACCELERATOR_IDLE}


@dataclass(frozen=True, kw_only=True)
class Scope:
    """The differences between an agent of all tasks and one of several agents.

    Args:
        echo_s: how long the record of a failed peer may take, after an error that is its consequence ("peer unavailable").
        failed_grace_s: time between SIGTERM and SIGKILL for tasks that outlive a failed one; 0 for SIGKILL at once, where the
            next attempt may have begun elsewhere.
        ends_with_record: whether the record of a failure ends the attempt; if not, the exit of the failed task does.
        records_stop: whether a record says that the attempt is being ended; several agents use a separate object for it.
    """

    echo_s: float
    failed_grace_s: float
    ends_with_record: bool
    records_stop: bool


# One agent sees all tasks, and ends them all before the next attempt.
WHOLE = Scope(echo_s=3.0, failed_grace_s=DECIDED_GRACE_S, ends_with_record=True, records_stop=True)
# The agents of a run hear of each other through its store.
SHARED = Scope(echo_s=5.0, failed_grace_s=0.0, ends_with_record=False, records_stop=False)


@dataclass(frozen=True, kw_only=True)
class View:
    """The knowledge of an agent about an attempt at one moment.

    Args:
        tasks: all tasks of the run, the first one first.
        own: the tasks of this agent.
        codes: exit codes of its tasks that have ended; the negative number of the signal that ended one.
        failed: records of failures, except of tasks that were restarted alone since.
        done: tasks with a finished program and a committed last checkpoint.
        stop_requested: whether the agent itself received a request to end, and its tasks with it.
    """

    tasks: Sequence[str]
    own: Collection[str]
    codes: Mapping[str, int]
    failed: Sequence[Event] = ()
    done: Collection[str] = ()
    stop_requested: bool = False

    @property
    def first_is_done(self) -> bool:
        """Whether the first task is done, and exits."""
        return self.tasks[0] not in self.codes and self.tasks[0] in self.done


@dataclass(frozen=True, kw_only=True)
class Cause:
    """Why an attempt ends, from an agent's view: a task is done, requests a restart, failed or died silently."""

    task: str
    code: int | None = None  # None if its record has the cause
    record: Event | None = None

    @property
    def is_asked(self) -> bool:
        """Whether the task wants the attempt to end, as done or to be restarted."""
        return self.code in (0, EXIT_CHECKPOINTED)


def cause(view: View) -> Cause | None:
    """Return why the attempt ends, or None while it continues."""
    first = view.tasks[0]
    if view.codes.get(first) == 0:
        return Cause(task=first, code=0)
    asking = [task for task, code in view.codes.items() if code == EXIT_CHECKPOINTED]
    if asking:
        return Cause(task=asking[0], code=EXIT_CHECKPOINTED)
    record, silent = _record(view), _silent(view)
    # A peer that died silently explains a collateral error, and SIGKILL explains everything: TensorFlow aborts a process
    # (SIGABRT) if a peer is gone, but no error in one task sends SIGKILL to another.
    killed = bool(silent) and view.codes[silent[0]] == -signal.SIGKILL
    if record is not None and not killed and not (silent and is_collateral(record)):
        return Cause(task=record.source, record=record)
    return Cause(task=silent[0], code=view.codes[silent[0]]) if silent else None


def echo_s(view: View, scope: Scope, limits: Limits) -> float:
    """Return how long another failure, of which this one is the consequence, may take to be known; 0 if this is the first."""
    record, silent = _record(view), _silent(view)
    if len(view.tasks) == 1 or not (record or silent) or (record is not None and not is_collateral(record)):
        return 0.0
    # TensorFlow aborts a process if a peer is gone. An agent of all tasks would have seen the end of that peer.
    expects_peer = view.first_is_done or not set(view.tasks) <= set(view.own)
    if silent and not (expects_peer and all(view.codes[task] == -signal.SIGABRT for task in silent)):
        return 0.0
    # Peers may fail because the first task is done and exits, which takes a while if it has exit handlers.
    return max(scope.echo_s, limits.exit_wait_s) if view.first_is_done else scope.echo_s


def _record(view: View) -> Event | None:
    return first_failure(view.failed, view.failed[0].attempt) if view.failed else None


def _silent(view: View) -> list[str]:
    """Return the tasks that ended without a record, killed tasks first."""
    recorded = {event.source for event in view.failed}
    silent = [task for task, code in view.codes.items() if code and task not in recorded]
    return sorted(silent, key=lambda task: view.codes[task] != -signal.SIGKILL)


def _is_exit_with_number(record: Event) -> bool:
    return record.data.get("type") == "SystemExit" and str(record.data.get("message"))[:1] in "-0123456789"


class Evidence(Protocol):
    """The evidence that an agent collects about a failed task, once it is the cause."""

    def memory(self, task: str) -> OutOfMemory: ...
    def cpu_limit(self, task: str) -> float | None: ...
    def full_disk(self) -> str:
        """Return which disk of the task is full, or ""."""
        ...

    def lost_peers(self, message: str) -> str:
        """Return the message of a task that lost contact with the others, with the reason if it is known."""
        ...

    def last_lines(self, task: str) -> str: ...
    def log(self, task: str) -> str: ...


def explained(cause: Cause, view: View, evidence: Evidence) -> AttemptEnd:
    """Return the end of the attempt, with the failure for the user."""
    task, code, record = cause.task, cause.code, cause.record
    if code == 0:
        return SUCCEEDED
    if code == EXIT_CHECKPOINTED:
        return CHECKPOINTED
    if record is None:
        code = code or 0
        killed = code == -signal.SIGKILL
        memory = evidence.memory(task) if killed else OutOfMemory.UNKNOWN
        reason, text = exits.describe(code, memory, evidence.cpu_limit(task))
        message, traceback = f"{task} {text}", evidence.last_lines(task)
    else:
        exited = [task for task in cluster.in_step(view.tasks) if view.codes.get(task) == 0]
        reason, message, traceback = reason_of(record, exited), message_of(record, exited), record.data["traceback"]
        if _is_exit_with_number(record) and (lines := evidence.last_lines(task)):
            # The traceback shows only where the program has ended; the program printed the reason before.
            traceback = "\n".join([traceback.rstrip(), "Last lines of its output:", *lines.split("\n")[-_LAST_LINES:]])
        hint = evidence.full_disk() if is_disk_full(record) else ""
        if hint := hint or exit_reasons.hint(str(record.data.get("type")), str(record.data.get("message"))):
            message = f"{message}: {hint}."
        if is_lost_peer(record) and not exited:
            message = evidence.lost_peers(message)
    failure = Failure(task=task, message=message, traceback=traceback, log=evidence.log(task))
    # A task may fail in any way after a request to end.
    return failed(Reason.PREEMPTED if view.stop_requested else reason, failure)


def restarts_alone(end: AttemptEnd, tasks: Sequence[str], codes: Mapping[str, int]) -> str:
    """Return the task that caused an end if the others can continue without it, and none of them needs a restart of all."""
    ended = [task for task, code in codes.items() if code]
    if not all(cluster.restarts_alone(task, tasks) for task in ended):
        return ""
    if end.state is State.CHECKPOINTED:
        return next(task for task in ended if codes[task] == EXIT_CHECKPOINTED)
    task = end.failure.task if end.failure else ""
    return task if task and cluster.restarts_alone(task, tasks) else ""


@dataclass(frozen=True, kw_only=True)
class Stop:
    """How a task that still runs at the end of an attempt is ended.

    Args:
        wait_s: how long it may take to end by itself, from the end of the attempt on.
        grace_s: time between SIGTERM and SIGKILL; 0 for SIGKILL at once.
    """

    wait_s: float = 0.0
    grace_s: float = 0.0


def may_save(end: AttemptEnd) -> bool:
    """Return whether tasks may save their state on SIGTERM: no task has failed, and no attempt may have begun elsewhere."""
    # The end of a failed task may have no failure here: the task has recorded it.
    of_no_task = end.failure is not None and not end.failure.task
    return end.reason in _MAY_SAVE and not end.restart and of_no_task


def stop(
    end: AttemptEnd,
    task: str,
    tasks: Sequence[str],
    *,
    done: bool,
    saving_s: float,
    steps: bool,
    scope: Scope,
    limits: Limits,
) -> Stop:
    """Return how to stop a task that still runs at the end of an attempt.

    It is `done` if its program is; `saving_s` is the time that it announced for a save after its own failure. With `steps`, it
    reports its steps, and joins actions of all tasks between them.
    """
    decided_s = min(DECIDED_GRACE_S, limits.grace_s)
    if end.state is State.SUCCEEDED:
        # Its exit handlers and threads can finish.
        return Stop(wait_s=limits.exit_wait_s if done else 0.0, grace_s=decided_s)
    if end.reason is Reason.HUNG:
        return Stop()
    if may_save(end):
        return Stop(grace_s=limits.grace_s)
    grace_s = min(scope.failed_grace_s, decided_s)
    if end.reason is Reason.CHECKPOINTED:
        # It saves too, and leaves after the same step.
        saves = steps and task in cluster.in_step(tasks)
        return Stop(wait_s=max(SAVING_S, limits.grace_s) if saves else 0.0, grace_s=grace_s)
    return Stop(wait_s=saving_s, grace_s=grace_s)


def over_limit(limit_s: float | None) -> AttemptEnd:
    message = f"The run took longer than timeout={compact_duration(limit_s or 0.0)!r}."
    return failed(Reason.TIMEOUT, Failure(task="", message=message))


def announced_s(records: Sequence[Event]) -> float:
    """Return how long a task may save the state that its failure left; `records` are its own of the attempt."""
    if any(event.kind == "left" for event in records):
        return 0.0
    return max((float(event.data.get("saving_s", 0.0)) for event in records if event.kind == "failed"), default=0.0)
