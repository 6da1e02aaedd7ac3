"""Handles of runs with their records in a folder of this machine: the run directory itself, or a copy of one in a bucket."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

from ..clock import Clock
from ..errors import PodliftError, StoreError
from ..job.layout import RunPaths
from ..job.plan import Plan
from ..process import janitor_watch, log_lines
from ..process.log_lines import LogLine
from ..records.accounts import LiveAccount
from ..records.recorder import has_ended, position
from ..records.sync.index import SyncedRun
from ..records.timeline import Moment
from ..status import Failure, Progress, Reason, State, Status
from ..storage import posix, trees
from ..storage.retry import Outage

# How often a heartbeat is read.
_PROGRESS_S = 5.0
# How often a run in a bucket is read whose backend is not registered here.
_UNREGISTERED_S = 5.0


def request_cancel(paths: RunPaths, request: bytes) -> None:
    """Write a cancel request to the run's directory, which the supervisor polls several times a second."""
    while True:
        # After the last one: a missing number in between does not matter.
        numbers = [int(name[:6]) for name in posix.list_names(paths.control) if name[:6].isdecimal()]
        with suppress(FileExistsError):  # another process made a request at the same moment
            posix.put_new(paths.cancel_request(max(numbers, default=0) + 1), request)
            return


class FolderRun:
    """The handle of a run of this machine: the records and the supervisor's process hold its whole state."""

    def __init__(self, plan: Plan, clock: Clock) -> None:
        self._plan = plan
        self._clock = clock

    def refresh(self, *, logs: bool = False) -> None:
        """Do nothing: the folder is current."""

    def supervised(self) -> bool:
        """Return whether the supervisor's process exists."""
        return janitor_watch.is_supervised(self._plan.paths, self._clock)

    def end_leftovers(self) -> None:
        """End the processes that have lost both their supervisor and their janitor."""
        if not has_ended(self._plan.paths):
            janitor_watch.end_leftovers(self._plan.paths)

    def merge(self, status: Status) -> Status:
        """Return the status unchanged: the records hold everything."""
        return status

    def progress(self) -> Progress | None:
        """Return the progress from the first task's file."""
        return position(self._plan.paths, self._plan.tasks[0])

    def account(self) -> LiveAccount | None:
        """Return nothing: the task's file has it."""
        return None

    def history(self) -> Sequence[Moment]:
        """Return nothing: the records hold everything."""
        return ()

    def logs(self, *, task: str | None, attempt: int | None, follow: bool) -> Iterator[LogLine]:
        """Yield the lines of the log files. With `follow`, until the supervisor has ended."""

        outage = Outage(self._clock, "The log cannot be read", "Its lines follow as soon as it can.")

        def supervised() -> bool:
            goes_on = True
            with outage.asking():
                goes_on = self.supervised()
                self.refresh(logs=True)
            self._clock.sleep(outage.pause_s)
            return goes_on or outage.failures > 0

        return log_lines.read(self._plan, task=task, attempt=attempt, follow=follow, supervised=supervised)

    def cancel(self, grace_s: float) -> None:
        """Write a cancel request for the supervisor."""
        try:
            request_cancel(self._plan.paths, f'{{"grace_s": {float(grace_s)}}}\n'.encode())
        except OSError as error:
            raise PodliftError(f"The run cannot be cancelled: {error}.") from error

    @contextmanager
    def attending(self) -> Iterator[Callable[[], None]]:
        """Yield a function that does nothing: the supervisor restarts the run."""
        yield lambda: None

    def fetch_outputs(self) -> None:
        """Do nothing: they are in the folder."""

    def settle(self, until: float | None) -> None:
        """Do nothing: there is no other copy."""


class CopiedRun(FolderRun):
    """The handle of a run of another machine or a cloud, which reads a local copy."""

    def __init__(self, plan: Plan, clock: Clock, refresh_s: float) -> None:
        super().__init__(plan, clock)
        self._copy = SyncedRun(plan.paths, plan.url, clock)
        self._refresh_s = refresh_s
        self._refreshed: dict[bool, float] = {}
        self._progress_read = -math.inf

    def end_leftovers(self) -> None:
        """Do nothing: its processes are on other machines."""

    def progress(self) -> Progress | None:
        """Return the training progress in the latest heartbeat, which is read at a limited rate."""
        now = self._clock.monotonic()
        if now - self._progress_read >= _PROGRESS_S:
            self._progress_read = now
            # The status is still useful if the progress cannot be read.
            with suppress(StoreError, ValueError):
                self._copy.read_heartbeat()
        return self._copy.progress

    def account(self) -> LiveAccount | None:
        """Return the account from the latest heartbeat."""
        self.progress()
        return self._copy.account

    def refresh(self, *, logs: bool = False) -> None:
        """Download new records, at a limited rate."""
        if self._clock.monotonic() - self._refreshed.get(logs, -math.inf) >= self._refresh_s:
            self._download(logs=logs)
            self._refreshed[logs] = self._clock.monotonic()

    def _download(self, *, logs: bool) -> None:
        self._copy.refresh(self._plan.tasks, logs=logs)

    def logs(self, *, task: str | None, attempt: int | None, follow: bool) -> Iterator[LogLine]:
        """Yield the lines of the downloaded log files."""
        self._download(logs=True)
        return super().logs(task=task, attempt=attempt, follow=follow)

    def fetch_outputs(self) -> None:
        """Download the outputs. Containers have written the model directly to the root."""
        paths = self._plan.paths
        self._copy.download(["outputs", "model"])
        shutil.rmtree(paths.outputs_model, ignore_errors=True)
        if os.path.isdir(paths.model):
            trees.copy_into(paths.model, paths.outputs_model)


class UnregisteredRun(FolderRun):
    """The handle of a run of a backend that is not registered in this process."""

    def supervised(self) -> bool:
        """Return True if only its service can tell."""
        return not self._plan.capabilities.supervised_here or super().supervised()


class UnregisteredCopy(CopiedRun):
    """Such a run in a bucket."""

    def supervised(self) -> bool:
        """Return True: only its service can tell."""
        return True


def unregistered(plan: Plan, clock: Clock) -> FolderRun:
    return UnregisteredCopy(plan, clock, _UNREGISTERED_S) if plan.local else UnregisteredRun(plan, clock)


def with_lost_job(status: Status, why: str) -> Status:
    """Return the status of a run. `why` explains why a run without a verdict lost its job; "" if it has one."""
    if status.state is not State.LOST or not why:
        return status
    return replace(status, reason=Reason.JOB_LOST, failure=Failure(task="", message=why))
