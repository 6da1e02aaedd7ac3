"""With which exit code a container leaves: Vertex AI starts again what aborts, and takes any other failure as final."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from typing import Any

from ...records.events import Event
from ...records.restarts import Ended
from ...status import EXIT_CHECKPOINTED, EXIT_INFRASTRUCTURE, Reason, State

# What Vertex AI takes for SIGABRT, after which it starts a job again.
AGAIN = 134
_ABORTS = (AGAIN, 139)
_SHELL_SIGNAL = 128


def code_of(code: int, *, echo: bool, cancelled: bool, again: bool) -> int:
    """Return the exit code of the container.

    Args:
        code: the task's exit code, or the negative number of the signal that ended it.
        echo: the task has failed because another one has: that one's end decides.
        cancelled: somebody has asked for the end of the run.
        again: the run is to start again.
    """
    # As a shell would say it.
    plain = code if code >= 0 else _SHELL_SIGNAL - code
    if plain and not cancelled and (echo or again):
        return AGAIN
    # A crash that no budget covers would be started again all the same, two dozen times.
    return EXIT_INFRASTRUCTURE if code < 0 and plain in _ABORTS else plain


def reason_of(code: int, *, told: bool) -> Reason:
    """Return why a task ended that left no record of its failure.

    Args:
        code: as of `code_of`.
        told: it was asked to end (SIGTERM).
    """
    if code == 0:
        return Reason.DONE
    if code == EXIT_CHECKPOINTED:
        return Reason.CHECKPOINTED
    if told or code == -signal.SIGTERM:
        return Reason.PREEMPTED
    return Reason.KILLED if code < 0 else Reason.USER_ERROR


def history(events: Sequence[Event], attempts: Sequence[int]) -> list[Ended]:
    """Return how attempts have ended, from the records of how their tasks did, in that order.

    Args:
        events: of kind "exited", of any attempts.
        attempts: their numbers.
    """
    found = []
    for attempt in attempts:
        exits = sorted((e for e in events if e.attempt == attempt and e.data.get("code")), key=lambda e: e.time)
        causes = [event for event in exits if not event.data.get("echo")]
        # Machines that go without a word are taken away.
        reason = Reason(causes[0].data["reason"]) if causes and "reason" in causes[0].data else Reason.PREEMPTED
        steps: list[Any] = [event.data["step"] for event in exits if event.data.get("step") is not None]
        found.append(Ended(state=State.FAILED, reason=reason, step=max(steps, default=None)))
    return found
