"""Whether a run starts again after an attempt has ended, and when. Pure: supervisor, client and keeper share it.

There are three budgets, because three different parties are to blame: the program (`user`), what it runs on
(`infrastructure`), and whoever wanted the machine back (`preemption`). None is charged for another's fault.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ..status import Reason, State

# That many attempts in a row that end at the same step are no accident any more.
LOOP = 3
_FIRST_DELAY_S, _LONGEST_DELAY_S = 1.0, 60.0

Budget = Literal["user_errors", "infrastructure", "preemptions"]
# Every reason an attempt can fail for, and who is to blame; None where another try cannot help.
BUDGETS: dict[Reason, Budget | None] = {
    Reason.USER_ERROR: "user_errors",
    Reason.IMPORT_ERROR: "user_errors",
    Reason.WRONG_ENTRY: "user_errors",
    Reason.HUNG: "infrastructure",
    Reason.KILLED: "infrastructure",
    Reason.OUT_OF_MEMORY: "infrastructure",
    Reason.INFRASTRUCTURE: "infrastructure",
    Reason.SUPERVISOR_LOST: "infrastructure",
    Reason.STOCKOUT: "infrastructure",
    Reason.PREEMPTED: "preemptions",
    Reason.CHECKPOINTED: "preemptions",
    Reason.QUOTA: None,
    Reason.PERMISSION: None,
    Reason.IMAGE: None,
    Reason.REFUSED: None,
    Reason.TIMEOUT: None,
    Reason.CANCELLED: None,
}


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How one attempt ended.

    Args:
        state: its state.
        reason: why.
        step: the last training step that was seen; None where none was.
    """

    state: State
    reason: Reason
    step: int | None = None


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What follows from the attempts so far.

    Args:
        restart: True to start the whole gang again.
        delay_s: how long to wait before, in seconds.
        why: one sentence for the log and for `why()`; "" where there is nothing to say.
    """

    restart: bool
    delay_s: float = 0.0
    why: str = ""


def decide(history: Sequence[Ended], policy: Mapping[str, Any], *, drill: bool = False) -> Decision:
    """Return whether the run starts again.

    Args:
        history: every attempt so far, oldest first; at least one.
        policy: how many restarts each budget allows, by its name; None for no limit.
        drill: True where somebody kills the tasks on purpose: then the same step again and again means nothing.
    """
    last = history[-1]
    budget = BUDGETS.get(last.reason)
    if last.state is State.SUCCEEDED or budget is None:
        return Decision(restart=False)
    used = sum(BUDGETS.get(ended.reason) == budget for ended in history) - 1
    allowed = policy[budget]
    if allowed is not None and used >= allowed:
        spent = f"{used} of {allowed} restarts after {_CAUSES[budget]} are used up (retry_{budget})."
        return Decision(restart=False, why="" if allowed == 0 else f"Not started again: {spent}")
    stuck = _stuck(history)
    if stuck and not drill:
        where = "before a first step was reported" if last.step is None else f"at step {last.step}"
        return Decision(
            restart=False,
            why=f"Not started again: {stuck} attempts in a row ended {where}. Another one would end there too.",
        )
    left = "" if allowed is None else f" {allowed - used - 1} more after that."
    delay_s = 0.0 if drill or budget == "preemptions" else _delay(history, budget)
    return Decision(
        restart=True, delay_s=delay_s, why=f"Started again after {_CAUSES[budget]} ({last.reason.value}).{left}"
    )


_CAUSES: dict[Budget, str] = {
    "user_errors": "an error of the program",
    "infrastructure": "a failure of what it runs on",
    "preemptions": "a preemption",
}


def _stuck(history: Sequence[Ended]) -> int:
    """Return how many attempts have ended at the same step, the last ones in a row; 0 where it is too few to tell."""
    last = history[-1]
    row = 0
    for ended in reversed(history):
        if ended.step != last.step:
            break
        row += 1
    return row if row >= LOOP else 0


def _delay(history: Sequence[Ended], budget: Budget) -> float:
    """Return the wait: twice as long after each failure in a row, as at first after an attempt that has got further."""
    row = 0
    for index in range(len(history) - 1, -1, -1):
        ended = history[index]
        if BUDGETS.get(ended.reason) != budget:
            break
        row += 1
        if index and (ended.step or 0) > (history[index - 1].step or 0):
            break
    return min(_FIRST_DELAY_S * 2.0 ** (row - 1), _LONGEST_DELAY_S)
