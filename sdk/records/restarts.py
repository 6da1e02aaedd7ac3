"""Decides whether and when a run is restarted after an attempt has ended. Pure: supervisor, client and keeper share it.

There are three budgets, one for each cause of a failure: the program (`user`), the infrastructure (`infrastructure`) and
the owner of the machine who reclaimed it (`preemption`). No budget is charged for another cause.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ..job.policies import Retry
from ..status import Reason, State
from ..storage.retry import backoff
from .events import TASK_RESTARTING, Event

# This many consecutive attempts ending at the same step count as a crash loop.
LOOP = 3
# Tasks that are lost within this time of each other, and are each restarted alone, are one failure.
TOGETHER_S = 10.0
_FIRST_DELAY_S, _LONGEST_DELAY_S = 1.0, 60.0
# No task has run, so the same step again is no sign of a mistake in the program.
_NO_MACHINE = (Reason.STOCKOUT, Reason.QUOTA)

_DEFAULT = Retry()

Budget = Literal["user_errors", "infrastructure", "preemptions"]
# The budget that each reason of a failure is charged to. None if a restart cannot help.
BUDGETS: dict[Reason, Budget | None] = {
    Reason.USER_ERROR: "user_errors",
    Reason.IMPORT_ERROR: "user_errors",
    Reason.WRONG_ENTRY: "user_errors",
    Reason.HUNG: "infrastructure",
    Reason.KILLED: "infrastructure",
    Reason.OUT_OF_MEMORY: "infrastructure",
    Reason.INFRASTRUCTURE: "infrastructure",
    Reason.INTERNAL: "infrastructure",
    Reason.SUPERVISOR_LOST: "infrastructure",
    Reason.JOB_LOST: "infrastructure",
    Reason.STOCKOUT: "infrastructure",
    Reason.QUOTA: "infrastructure",
    Reason.PREEMPTED: "preemptions",
    Reason.CHECKPOINTED: "preemptions",
    Reason.PERMISSION: None,
    Reason.IMAGE: None,
    Reason.REFUSED: None,
    Reason.BUDGET: None,
    Reason.TIMEOUT: None,
    Reason.ACCELERATOR_IDLE: None,
    Reason.CANCELLED: None,
}


@dataclass(frozen=True, kw_only=True)
class EndedAttempt:
    """The end of one attempt, or of one task that can be restarted alone within it."""

    state: State
    reason: Reason
    step: int | None = None  # the last training step that was reported
    task: str = ""  # the task that can be restarted alone, "" for all tasks
    time: float | None = None  # unix time of the end of that task


@dataclass(frozen=True, kw_only=True)
class Decision:
    """Whether to restart, derived from the attempts so far."""

    restart: bool  # restart the whole gang, or the task that ended alone
    delay_s: float = 0.0  # wait this long before the restart
    why: str = ""  # one sentence for the log and for `why()`, or ""


def decide(history: Sequence[EndedAttempt], policy: Retry, *, drill: bool = False) -> Decision:
    """Return whether the run is restarted.

    `history` holds every attempt and every restart of a task alone so far, oldest first: they share the budgets. In a drill,
    tasks are killed on purpose: ending at the same step repeatedly is not a crash loop.
    """
    last = history[-1]
    same = [ended for ended in history if ended.task == last.task]
    budget = BUDGETS.get(last.reason)
    if last.state is State.SUCCEEDED or budget is None:
        return Decision(restart=False)
    used = _failures([ended for ended in history if BUDGETS.get(ended.reason) == budget]) - 1
    allowed: int | None = getattr(policy, budget)
    if allowed is not None and used >= allowed:
        spent = f"{used} of {allowed} restarts after {_CAUSES[budget]} are used up (retry_{budget})."
        if allowed == 0:
            # Without a restart by default there is nothing to explain.
            spent = "" if getattr(_DEFAULT, budget) == 0 else f"retry_{budget} is 0."
        return Decision(restart=False, why=spent and f"Not restarted: {spent}")
    # More memory or a smaller batch helps, another attempt does not.
    out_of_memory = last.reason is Reason.OUT_OF_MEMORY
    if out_of_memory and _failures([ended for ended in history if ended.reason is last.reason]) > 1:
        return Decision(restart=False, why="Not restarted: memory ran out again after a restart.")
    stuck = _stuck(same)
    if stuck and not drill:
        where = "before reporting a step" if last.step is None else f"at step {last.step}"
        often = f"{stuck} consecutive attempts ended {where}, so another one is expected to end there too."
        if last.task:
            often = f"{last.task} ended {stuck} times {where} of the training, so it is expected to end there again."
        return Decision(restart=False, why=f"Not restarted: {often}")
    until = ", none if memory runs out again" if out_of_memory else ""
    remaining = "" if allowed is None else f" Restarts left after this one: {allowed - used - 1}{until}."
    delay_s = 0.0 if drill or (budget == "preemptions" and not last.task) else _delay(same, budget)
    what = f"Restarting {last.task} alone" if last.task else "Restarting"
    return Decision(
        restart=True, delay_s=delay_s, why=f"{what} after {_CAUSES[budget]} ({last.reason.value}).{remaining}"
    )


def of_tasks(events: Sequence[Event], attempt: int) -> list[EndedAttempt]:
    """Return the ends of tasks that were restarted alone in an attempt, oldest first."""
    restarts = sorted((e for e in events if e.kind == TASK_RESTARTING and e.attempt == attempt), key=lambda e: e.time)
    return [
        EndedAttempt(
            state=State.FAILED,
            reason=Reason(e.data["reason"]),
            step=e.data.get("step"),
            task=str(e.data["task"]),
            time=e.time,
        )
        for e in restarts
    ]


_CAUSES: dict[Budget, str] = {
    "user_errors": "an error in the program",
    "infrastructure": "an infrastructure failure",
    "preemptions": "a preemption",
}


def _failures(ends: Sequence[EndedAttempt]) -> int:
    """Return how many failures caused these ends: tasks that were lost together count once."""
    count, together, last = 0, set[str](), None
    for ended in ends:
        near = last is not None and ended.time is not None and abs(ended.time - last) <= TOGETHER_S
        if not near or ended.task in together:
            count, together = count + 1, set()
        together.add(ended.task)
        last = ended.time
    return count


def _stuck(history: Sequence[EndedAttempt]) -> int:
    """Return how many of the latest attempts in a row ended at the same step, or 0 if they are fewer than LOOP."""
    last = history[-1]
    row = 0
    for ended in reversed(history):
        # A preemption of a program without steps is no sign of a mistake in it, nor is the end of a single task.
        unknown = ended.step is None and (ended.reason is Reason.PREEMPTED or ended.task)
        taken = ended.reason in _NO_MACHINE or unknown
        if ended.step != last.step or taken:
            break
        row += 1
    return row if row >= LOOP else 0


def _delay(history: Sequence[EndedAttempt], budget: Budget) -> float:
    """Return the delay: none for the first restart or after progress, else it doubles with each failure in a row."""
    row = 0
    if history[-1].task:
        # The first task counts the steps: they do not show the progress of this task.
        row, history = len(history), ()
    for index in range(len(history) - 1, -1, -1):
        ended, before = history[index], history[index - 1].step if index else None
        if BUDGETS.get(ended.reason) != budget or (ended.step or 0) > (before or 0):
            break
        row += 1
    # One end is no loop; scarce machines stay scarce for a while.
    if not history or (row == len(history) and history[-1].reason not in _NO_MACHINE):
        row -= 1
    return backoff(row, _FIRST_DELAY_S, _LONGEST_DELAY_S) if row > 0 else 0.0
