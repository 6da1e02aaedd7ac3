"""A run in a bucket that another machine supervises: read from a local copy, alive by its heartbeat, cancelled by a request."""

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

# Heartbeats come every 10 s. A machine without network for this long counts as lost.
LOST_AFTER_S = 90.0
_REFRESH_S, _BEAT_S, _POLL_S = 1.0, 2.0, 0.1
_TRIES = 3


def remote_run(plan: Plan, clock: Clock) -> RemoteRun | None:
    """Return the handle of a run that another machine supervises, or None if this machine does."""
    return None if not plan.local or is_owned(plan) else RemoteRun(plan, clock)


def is_owned(plan: Plan) -> bool:
    """True if the run's latest supervisor was started on this machine, as far as this machine knows."""
    return os.path.exists(plan.paths.owner(uploader.known_resumes(plan.paths)))


def wait_for_upload(plan: Plan, clock: Clock, until: float | None) -> None:
    """Wait until everything that an ended run wrote on this machine is in its bucket."""
    starts = 0
    while not uploader.is_uploaded(plan.paths):
        if until is not None and clock.monotonic() >= until:
            raise WaitTimeoutError(
                f"The run {plan.run_id} has ended. Its files are still being uploaded to {plan.url}."
            )
        if not uploader.is_running(plan.paths) and not uploader.is_starting():
            if starts >= _TRIES:
                raise StoreError(
                    f"The run {plan.run_id} has ended, but not all of its files could be uploaded to {plan.url}. Nothing is "
                    f"lost. Last line of {plan.paths.sync_log}: {last_lines(plan.paths.sync_log, 1)} "
                    f"Next: podlift wait {plan.url} tries again."
                )
            starts += 1
            uploader.start(plan)
        clock.sleep(_POLL_S)


class RemoteRun:
    """The handle of one such run."""

    def __init__(self, plan: Plan, clock: Clock) -> None:
        from ...records.sync.pull import LocalCopy

        self._copy = LocalCopy(plan.paths, plan.url, clock)
        self._plan = plan
        self._clock = clock
        self._refreshed = {False: -_REFRESH_S, True: -_REFRESH_S}
        self._beat: tuple[float, float, bool] | None = None

    def refresh(self, *, logs: bool = False) -> None:
        """Download what is new, at most once a second."""
        now = self._clock.monotonic()
        if now - self._refreshed[logs] >= _REFRESH_S:
            self._copy.refresh(self._plan.tasks, logs=logs)
            self._refreshed[logs] = self._clock.monotonic()

    def observe(self, plan: Plan) -> Observation:
        """Return whether the run is supervised, after reading everything written before that was known."""
        supervised = self.supervised()
        self.refresh()
        return Observation(supervised=supervised, detail="on another machine")

    def download_outputs(self) -> None:
        """Download the outputs to this machine."""
        self._copy.download(["outputs"])

    def merge(self, status: Status) -> Status:
        """Return the status unchanged: the records hold everything."""
        return status

    def progress(self) -> Progress | None:
        """Return the training progress at the last heartbeat."""
        self.supervised()
        return self._copy.progress

    def supervised(self) -> bool:
        """Return whether the run has a recent heartbeat, or may not have had the time for its first one."""
        now = self._clock.monotonic()
        if self._beat is None or now - self._beat[0] >= _BEAT_S:
            self._beat = (now, *self._copy.heartbeat_age_s())
        then, age_s, supervised = self._beat
        return supervised and age_s + (now - then) <= LOST_AFTER_S

    def logs(self, *, task: str | None, attempt: int | None, follow: bool) -> Iterator[LogLine]:
        """Yield the lines of the tasks' logs."""

        def supervised() -> bool:
            supervised = self.supervised()
            self.refresh(logs=True)
            return supervised

        self._copy.refresh(self._plan.tasks, logs=True)
        return logs.read(self._plan, task=task, attempt=attempt, follow=follow, supervised=supervised)

    def cancel(self, grace_s: float) -> None:
        """Leave a cancel request for the supervisor."""
        self._copy.request_cancel(uploader.known_resumes(self._plan.paths), uuid.uuid4().hex[:12], grace_s)
