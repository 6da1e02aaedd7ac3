"""The exit code of a container, which tells the service whether to start it again, and why a task ended."""

from __future__ import annotations

import signal

from ...job.container import ContainerTerms
from ...status import EXIT_CHECKPOINTED, EXIT_INFRASTRUCTURE, Reason

_SHELL_SIGNAL = 128


def code_of(code: int, terms: ContainerTerms, *, restart: bool) -> int:
    """Return the container's exit code for that of its task, which is negative if a signal ended it.

    `restart`: another attempt follows, but not in this container.
    """
    # As a shell would report it.
    plain = code if code >= 0 else _SHELL_SIGNAL - code
    if plain and restart:
        return terms.restart_code
    # The service would start what no retry budget covers, as often as its own rules allow.
    return EXIT_INFRASTRUCTURE if plain in terms.restarting_codes else plain


def reason_of(code: int, *, stop_requested: bool) -> Reason:
    """Return why a task ended that has no record of a failure."""
    if code == 0:
        return Reason.DONE
    if code == EXIT_CHECKPOINTED:
        return Reason.CHECKPOINTED
    if stop_requested or code == -signal.SIGTERM:
        return Reason.PREEMPTED
    return Reason.KILLED if code < 0 else Reason.USER_ERROR
