"""The exit code of a container. Vertex AI restarts what aborts, and treats any other failure as final."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from typing import Any

from ...records.events import Event
from ...records.restarts import EndedAttempt
from ...status import EXIT_CHECKPOINTED, EXIT_INFRASTRUCTURE, Reason, State

# Vertex AI treats this as SIGABRT, after which it restarts a job.
RESTART = 134
_ABORTS = (RESTART, 139)
_SHELL_SIGNAL = 128


def code_of(code: int, *, collateral: bool, cancelled: bool, restart: bool) -> int:
    """Return the container's exit code for that of its task, which is negative if a signal ended it.

    `collateral`: the task failed because another one did, whose exit code decides. `restart`: the run is to be restarted.
    """
    # As a shell would report it.
    plain = code if code >= 0 else _SHELL_SIGNAL - code
    if plain and not cancelled and (collateral or restart):
        return RESTART
    # Vertex AI would restart a crash that no retry budget covers, two dozen times.
    return EXIT_INFRASTRUCTURE if code < 0 and plain in _ABORTS else plain


def reason_of(code: int, *, stop_requested: bool) -> Reason:
    """Return why a task ended that has no record of a failure."""
    if code == 0:
        return Reason.DONE
    if code == EXIT_CHECKPOINTED:
        return Reason.CHECKPOINTED
    if stop_requested or code == -signal.SIGTERM:
        return Reason.PREEMPTED
    return Reason.KILLED if code < 0 else Reason.USER_ERROR


def history(events: Sequence[Event], attempts: Sequence[int]) -> list[EndedAttempt]:
    """Return how these attempts ended, from the "exited" records of their tasks."""
    found = []
    for attempt in attempts:
        exits = sorted((e for e in events if e.attempt == attempt and e.data.get("code")), key=lambda e: e.time)
        causes = [event for event in exits if not event.data.get("collateral")]
        # A machine that disappears without a record was preempted.
        reason = Reason(causes[0].data["reason"]) if causes and "reason" in causes[0].data else Reason.PREEMPTED
        steps: list[Any] = [event.data["step"] for event in exits if event.data.get("step") is not None]
        found.append(EndedAttempt(state=State.FAILED, reason=reason, step=max(steps, default=None)))
    return found
