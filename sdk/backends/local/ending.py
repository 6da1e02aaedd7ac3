"""How a run ends, and what can end it from outside: a client's wish, a signal, the time limit."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...clock import Clock
from ...spec.plan import Plan
from ...status import Failure, Reason, State
from ...storage import posix
from ...text import compact_duration


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """How an attempt ended."""

    state: State
    reason: Reason
    failure: Failure | None = None


def failed(reason: Reason, failure: Failure) -> Verdict:
    """Return the verdict for a run that failed."""
    return Verdict(state=State.FAILED, reason=reason, failure=failure)


class Ending:
    """What may end a run from outside.

    Args:
        plan: the run.
        told: takes a signal's number when the supervisor itself was told to stop.
        clock: what time it is.
        fulfilled: how many wishes to cancel are an earlier supervisor's.
    """

    def __init__(self, plan: Plan, told: Sequence[int], clock: Clock, fulfilled: int = 0) -> None:
        self._fulfilled = fulfilled
        self._plan = plan
        self._told = told
        self._clock = clock
        timeout_s = plan.job["limits"]["timeout_s"]
        self._deadline = None if timeout_s is None else clock.monotonic() + timeout_s

    def asked(self) -> tuple[Verdict, float] | None:
        """Return the verdict that was asked for, and how long tasks may take to stop, in seconds; None as long as none is."""
        limits = self._plan.job["limits"]
        wish = self.cancel_grace()
        if wish is not None:
            return Verdict(state=State.CANCELLED, reason=Reason.CANCELLED), wish
        if self._told:
            failure = Failure(task="", message="The supervisor was told to stop by a signal.")
            return failed(Reason.INFRASTRUCTURE, failure), limits["grace_s"]
        if self._deadline is not None and self._clock.monotonic() >= self._deadline:
            failure = Failure(
                task="", message=f"The run took longer than timeout={compact_duration(limits['timeout_s'])!r}."
            )
            return failed(Reason.TIMEOUT, failure), limits["grace_s"]
        return None

    def cancel_grace(self) -> float | None:
        """Return the most impatient of the clients' wishes, in seconds; None as long as there is none."""
        found = []
        for name in sorted(posix.list_names(self._plan.paths.control))[self._fulfilled :]:
            try:
                found.append(float(json.loads((Path(self._plan.paths.control) / name).read_bytes())["grace_s"]))
            except (ValueError, KeyError, TypeError):
                # Whatever lies there was put there to end the run: the job's own grace is the safe reading of it.
                found.append(float(self._plan.job["limits"]["grace_s"]))
        return min(found, default=None)
