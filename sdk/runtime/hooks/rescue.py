"""Saves the state that an exception left, on the way out: between two steps, by all tasks or by none, within a time limit.

The failure is recorded before. A problem in here is only logged: it never replaces the program's own error.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, TypeVar

from ...errors import PodliftError
from ...logs import logger
from ...status import continuation

if TYPE_CHECKING:
    from ...checkpoint.manager import CheckpointManager, UnsavedState

_log = logger("runtime")

# Tasks that fail alike reach the same step within moments. A task that hangs in a collective never does.
_MEET_S, _MEET_SHARE = 5.0, 0.8
_T = TypeVar("_T")


def bounded(call: Callable[[], None], within_s: float) -> bool:
    """Call in a thread and return whether the call ended in time. Its exceptions are ignored."""
    thread = threading.Thread(target=call, name="podlift-rescue", daemon=True)
    thread.start()
    thread.join(max(within_s, 0.0))
    return not thread.is_alive()


def state_within(take: Callable[[], _T], within_s: float) -> _T | None:
    """Return the unsaved state of the training if it can be taken in time; an exception is logged."""
    states: list[_T] = []

    def work() -> None:
        try:
            states.append(take())
        except Exception as error:
            _log.info(f"the unsaved state of the training cannot be saved: {type(error).__name__}: {error}")

    bounded(work, within_s)
    return states[0] if states else None


def save(
    manager: CheckpointManager,
    state: UnsavedState | None,
    within_s: float,
    ended: Callable[[], Collection[str]] = tuple,
) -> None:
    """Save the state, if any, finish the saves in progress, and log where a further attempt would begin.

    `ended` returns the tasks that have ended: there is no state to save without their parts.
    """
    until = time.monotonic() + within_s
    problems: list[str] = []

    def work() -> None:
        try:
            # Store requests end when this task stops waiting for them.
            manager.store.set_deadline(within_s)
            manager.wait(within_s)
            problems.append("" if state is None else _save(manager, state, until, ended))
        except PodliftError as error:
            problems.append(str(error))
        except BaseException as error:
            problems.append(f"{type(error).__name__}: {error}")

    in_time = bounded(work, within_s)
    problem = problems[0] if problems else f"it did not finish within {within_s:.1f} s"
    if problem:
        _log.info(f"the state was not saved on the way out: {problem}")
    elif state is not None:
        _log.info(f"saved on the way out, at step {manager.base + state.steps}")
    if manager.rank == 0 and in_time:
        _log.info(continuation(manager.info.attempt + 1, manager.saved_step))


def _save(manager: CheckpointManager, state: UnsavedState, until: float, ended: Callable[[], Collection[str]]) -> str:
    """Save, and return the obstacle if it failed, else ""."""
    from ...checkpoint.tf import snapshot

    checked = [array for array in state.contents.arrays if array.path not in state.metrics]
    wrong = snapshot.first_non_finite(checked)
    if wrong is not None:
        return f"{wrong} holds NaN or infinity"
    if not manager.meet(state.steps, min(_MEET_S, _MEET_SHARE * (until - time.monotonic())), ended):
        return f"not every task reached step {manager.base + state.steps} in time, and each holds a part of the state"
    ticket = manager.save(state, reason="failure")
    if ticket is None:
        return "the checkpoints of tasks without a connection hold the state of the first one alone"
    ticket.wait(max(until - time.monotonic(), 0.0))
    return ""
