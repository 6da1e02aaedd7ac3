"""What an exception leaves of a training is saved on the way out: between two steps, by all tasks or by none, within a time.

The failure is recorded before. Whatever goes wrong here is a line of the log: it never takes the place of the program's error.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...errors import PodliftError
from ...status import continuation

if TYPE_CHECKING:
    from ...checkpoint.contents import Contents
    from ...checkpoint.manager import CheckpointManager

# Tasks that fail alike come to the same step within moments; one that hangs in a collective never comes.
_MEET_S, _MEET_SHARE = 5.0, 0.8


@dataclass(frozen=True, kw_only=True)
class State:
    """The state of a stage between two steps, in memory.

    Args:
        stage: counts from 0.
        steps: training steps in this stage so far.
        contents: its variables share the memory of the model's until those change.
        at: where in the stage the training is.
        downgrades: what of it is not restored exactly.
        metrics: paths of variables that may hold NaN: the sums of metrics, which begin anew.
    """

    stage: int
    steps: int
    contents: Contents
    at: dict[str, Any]
    downgrades: tuple[str, ...] = ()
    metrics: frozenset[str] = frozenset()


def bounded(call: Callable[[], None], within_s: float) -> bool:
    """Call in a thread of its own, and return whether that was over in time; what it raises is its own business."""
    thread = threading.Thread(target=call, name="podlift-rescue", daemon=True)
    thread.start()
    thread.join(max(within_s, 0.0))
    return not thread.is_alive()


def save(session: CheckpointManager, state: State | None, within_s: float, log: Callable[[str], None]) -> None:
    """Save a state, end what is being saved, and say where a further attempt begins.

    Args:
        session: of this task.
        state: what was left; None where there is nothing new, or nothing that can be saved.
        within_s: all of it is given up after so many seconds.
        log: takes lines for people.
    """
    until = time.monotonic() + within_s
    found: list[str] = []

    def work() -> None:
        try:
            # A bucket is asked no longer than this task waits.
            session.store.set_deadline(within_s)
            session.wait(within_s)
            found.append("" if state is None else _save(session, state, until))
        except PodliftError as error:
            found.append(str(error))
        except BaseException as error:
            found.append(f"{type(error).__name__}: {error}")

    over = bounded(work, within_s)
    why = found[0] if found else f"it was not done after {within_s:.1f} s"
    if why:
        log(f"the state was not saved on the way out: {why}")
    elif state is not None:
        log(f"saved on the way out, at step {session.base + state.steps}")
    if session.rank == 0 and over:
        log(continuation(session.attempt + 1, session.saved_step))


def _save(session: CheckpointManager, state: State, until: float) -> str:
    """Save, and return why not; "" where it is saved."""
    from ...checkpoint.tf import finite

    checked = [array for array in state.contents.arrays if array.path not in state.metrics]
    wrong = finite.first_non_finite(checked)
    if wrong is not None:
        return f"{wrong} holds NaN or infinity"
    if not session.meet(state.steps, min(_MEET_S, _MEET_SHARE * (until - time.monotonic()))):
        return f"not every task has come to step {session.base + state.steps} in time, and each has a part of the state"
    ticket = session.save(
        state.stage,
        state.contents,
        at=state.at,
        steps=state.steps,
        reason="failure",
        downgrades=state.downgrades,
    )
    if ticket is not None:
        ticket.wait(max(until - time.monotonic(), 0.0))
    return ""
