"""A run in a bucket that another machine looks after: read from a copy, judged by its heartbeat, cancelled by a wish."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator

from ...clock import Clock
from ...errors import StoreError, WaitTimeoutError
from ...process.log_tail import last_lines
from ...spec.plan import Plan
from ...status import Progress, Status
from ..base import LogLine, Observation
from . import logs, uploader

# Said every 10 s. A machine whose network is gone for this long is taken for lost.
LOST_AFTER_S = 90.0
_REFRESH_S, _ASK_S, _POLL_S = 1.0, 2.0, 0.1
_TRIES = 3


def of(plan: Plan, clock: Clock) -> Far | None:
    """Return the way to a run that others look after; None for one of this machine."""
    return None if not plan.local or is_own(plan) else Far(plan, clock)


def is_own(plan: Plan) -> bool:
    """True for a run whose newest supervisor was started on this machine, as far as this machine knows."""
    return os.path.exists(plan.paths.owner(uploader.number_of(plan.paths)))


def settle(plan: Plan, clock: Clock, until: float | None) -> None:
    """Wait until all that an ended run of this machine has left is in its bucket.

    Args:
        plan: the run.
        clock: what time it is.
        until: monotonic time at which to give up; None for never.

    Raises:
        WaitTimeoutError: it is not yet.
        StoreError: whoever carries it has given up.
    """
    tried = 0
    while not uploader.is_carried(plan.paths):
        if until is not None and clock.monotonic() >= until:
            raise WaitTimeoutError(f"The run {plan.run_id} has ended, and is still on its way to {plan.url}.")
        if not uploader.is_at_work(plan.paths) and not uploader.is_starting():
            if tried >= _TRIES:
                raise StoreError(
                    f"The run {plan.run_id} has ended, and not all of it could be brought to {plan.url}; nothing is lost. The "
                    f"last that {plan.paths.sync_log} says: {last_lines(plan.paths.sync_log, 1)} "
                    f"Then: podlift wait {plan.url} tries again."
                )
            tried += 1
            uploader.start(plan)
        clock.sleep(_POLL_S)


class Far:
    """One such run.

    Args:
        plan: the run.
        clock: what time it is.
    """

    def __init__(self, plan: Plan, clock: Clock) -> None:
        from ...records.sync.pull import Copy

        self._copy = Copy(plan.paths, plan.url, clock)
        self._plan = plan
        self._clock = clock
        self._refreshed = {False: -_REFRESH_S, True: -_REFRESH_S}
        self._asked: tuple[float, float, bool] | None = None

    def refresh(self, *, logs: bool = False) -> None:
        """Read what is new, once a second at most.

        Args:
            logs: logs and metrics too.
        """
        now = self._clock.monotonic()
        if now - self._refreshed[logs] >= _REFRESH_S:
            self._copy.refresh(self._plan.tasks, logs=logs)
            self._refreshed[logs] = self._clock.monotonic()

    def observe(self, plan: Plan) -> Observation:
        """Say whether somebody looks after the run."""
        lives = self.supervised()
        # What was written before the word that is judged is read by now.
        self.refresh()
        return Observation(supervised=lives, detail="on another machine")

    def bring_outputs(self) -> None:
        """Bring what the program has left to this machine."""
        self._copy.files(["outputs"])

    def told(self, status: Status) -> Status:
        """Return the status as it is: the records say everything."""
        return status

    def progress(self) -> Progress | None:
        """Return how far the training was at the last heartbeat."""
        self.supervised()
        return self._copy.progress

    def supervised(self) -> bool:
        """Say whether somebody looks after the run: by a word that is not old, or for the time that it takes to say it."""
        now = self._clock.monotonic()
        if self._asked is None or now - self._asked[0] >= _ASK_S:
            self._asked = (now, *self._copy.age_s())
        then, age_s, said = self._asked
        return said and age_s + (now - then) <= LOST_AFTER_S

    def logs(self, *, task: str | None, attempt: int | None, follow: bool) -> Iterator[LogLine]:
        """Yield the tasks' lines."""

        def supervised() -> bool:
            lives = self.supervised()
            self.refresh(logs=True)
            return lives

        self._copy.refresh(self._plan.tasks, logs=True)
        return logs.read(self._plan, task=task, attempt=attempt, follow=follow, supervised=supervised)

    def cancel(self, grace_s: float) -> None:
        """Leave a wish for who looks after it."""
        self._copy.wish(uploader.number_of(self._plan.paths), uuid.uuid4().hex[:12], grace_s)
