"""Runs below a root in a bucket: of this machine, which are uploaded, and of another one, which are read from a local copy."""

from __future__ import annotations

import shlex

from ...clock import Clock
from ...errors import StoreError, WaitTimeoutError
from ...job.plan import Plan
from ...process.log_tail import last_lines
from ...records.recorder import has_ended, is_uploaded, known_resumes
from ...status import Progress
from ..folder import CopiedRun, FolderRun
from . import uploader

# Heartbeats come every 10 s. A machine without network for this long counts as lost.
LOST_AFTER_S = 90.0
_REFRESH_S, _BEAT_S, _POLL_S, _TRIES = 1.0, 2.0, 0.1, 3


class OwnedRun(FolderRun):
    """A run that this machine supervises. Any client makes sure that it is uploaded."""

    def __init__(self, plan: Plan, clock: Clock) -> None:
        super().__init__(plan, clock)
        if not (is_uploaded(plan.paths) or uploader.is_active(plan.paths)):
            uploader.start(plan)

    def settle(self, until: float | None) -> None:
        """Wait until everything that the ended run wrote on this machine is in its bucket."""
        plan, starts = self._plan, 0
        while not is_uploaded(plan.paths):
            if until is not None and self._clock.monotonic() >= until:
                raise WaitTimeoutError(
                    f"The run {plan.run_id} has ended. Its files are still being uploaded to {plan.url}."
                )
            if not uploader.is_active(plan.paths):
                if starts >= _TRIES:
                    raise StoreError(
                        f"The run {plan.run_id} has ended, but not all of its files could be uploaded to {plan.url}. Nothing "
                        f"is lost. Last line of {plan.paths.sync_log}: {last_lines(plan.paths.sync_log, 1)} "
                        f"Next: podlift wait {shlex.quote(plan.url)} tries again."
                    )
                starts += 1
                uploader.start(plan)
            self._clock.sleep(_POLL_S)


class BucketRun(CopiedRun):
    """A run that another machine supervises: alive by its heartbeat, cancelled by a request in the bucket."""

    def __init__(self, plan: Plan, clock: Clock) -> None:
        super().__init__(plan, clock, _REFRESH_S)
        self._beat: tuple[float, float, bool] | None = None

    def supervised(self) -> bool:
        """Return whether the run has a recent heartbeat, or may not have had the time for its first one."""
        supervised = not has_ended(self._plan.paths) and self._has_heartbeat()
        # Everything written before that was known is read.
        self.refresh()
        return supervised

    def _has_heartbeat(self) -> bool:
        now = self._clock.monotonic()
        if self._beat is None or now - self._beat[0] >= _BEAT_S:
            self._beat = (now, *self._copy.heartbeat_age_s())
        then, age_s, supervised = self._beat
        return supervised and age_s + (now - then) <= LOST_AFTER_S

    def progress(self) -> Progress | None:
        self._has_heartbeat()
        return self._copy.progress

    def cancel(self, grace_s: float) -> None:
        self._copy.request_cancel(known_resumes(self._plan.paths), grace_s)

    def fetch_outputs(self) -> None:
        self._copy.download(["outputs"])
