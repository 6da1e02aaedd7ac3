"""The stop conditions from outside a run: a cancel request, a signal, the time limit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ...clock import Clock
from ...execution.ending import over_limit
from ...job.plan import Plan
from ...records.sync import cancels
from ...records.verdicts import CANCELLED, AttemptEnd, failed
from ...status import Failure, Reason
from ...storage import posix


class StopConditions:
    """The stop conditions of a run.

    `signals` collects signals that the supervisor received. The first `handled` cancel requests are an earlier supervisor's.
    """

    def __init__(self, plan: Plan, signals: Sequence[int], clock: Clock, handled: int = 0) -> None:
        self.handled = handled
        self._plan = plan
        self._signals = signals
        self._clock = clock
        timeout_s = plan.job.limits.timeout_s
        self._deadline = None if timeout_s is None else clock.monotonic() + timeout_s

    def stop_requested(self) -> tuple[AttemptEnd, float] | None:
        """Return the requested end and how many seconds the tasks have to stop, or None."""
        limits = self._plan.job.limits
        grace_s = self.cancel_grace_s()
        if grace_s is not None:
            return CANCELLED, grace_s
        if self._signals:
            failure = Failure(task="", message="The supervisor was stopped by a signal.")
            return failed(Reason.INFRASTRUCTURE, failure), limits.grace_s
        if self._deadline is not None and self._clock.monotonic() >= self._deadline:
            return over_limit(limits.timeout_s), limits.grace_s
        return None

    def cancel_grace_s(self) -> float | None:
        """Return the shortest grace of all cancel requests, in seconds, or None."""
        folder, own_s = Path(self._plan.paths.control), self._plan.job.limits.grace_s
        texts = [(folder / name).read_bytes() for name in sorted(posix.list_names(str(folder)))[self.handled :]]
        return min((cancels.parse_request(text, now=0.0, grace_s=own_s)[1] for text in texts), default=None)
