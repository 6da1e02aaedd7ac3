"""The handle of a run on Vertex AI: its records in the bucket, its job at the vendor, and the resulting status.

Such a run has no supervisor. Its tasks write their records, the vendor restarts tasks on preempted machines, and the first
client that sees the end of the job writes the verdict, which then holds for everyone.
"""

from __future__ import annotations

import json
import os
import shutil
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain

from ...clock import Clock
from ...errors import AccessError, PodliftError, StoreError
from ...logs import logger
from ...records.events import Event, source_of
from ...records.recorder import has_ended, read_events
from ...records.timeline import NOW, Moment
from ...runtime.container.tail import TAIL_BYTES
from ...spec.plan import Plan
from ...spec.policies import Vertex
from ...status import Progress, Reason, State, Status
from ...storage import emulator, trees
from ...storage.gcs.store import GcsStore
from ...storage.store import create
from ...text import size
from ..base import LogLine
from ..folder import CopiedRun
from . import history, logs, service, states, tails
from .create_job import KEYS, CreatedJob
from .latest_job import LatestJob

_log = logger("backends.vertex")

_PROGRESS_S = 5.0
# The job is cancelled this long after the end of the requested grace.
_CANCEL_MARGIN_S = 15.0
# A job's error text is available about a minute after its end.
_ERROR_TEXT_S = 120.0


@dataclass(frozen=True, kw_only=True)
class CancelRequest:
    """A cancel request, which the tasks read and clients enforce. All is 0 in one that cannot be read, which still counts."""

    requested_at: float = 0.0
    grace_s: float = 0.0

    @staticmethod
    def parse(data: bytes) -> CancelRequest:
        try:
            found = json.loads(data)
            return CancelRequest(requested_at=float(found["requested_at"]), grace_s=float(found["grace_s"]))
        except (ValueError, TypeError, LookupError):
            return CancelRequest()


class VertexRun(CopiedRun):
    def __init__(self, plan: Plan, clock: Clock) -> None:
        self._polling = logs.polling()
        super().__init__(plan, clock, self._polling.poll_s)
        service.check_emulator()
        self._emulator = emulator.asked()
        self._options = Vertex.of(plan.target)
        self._store = self._copy.store
        self._job = LatestJob(plan, self._store, clock)
        self._cancelled = False
        self._progress_read = -_PROGRESS_S

    def _download(self, *, logs: bool) -> None:
        if has_ended(self._plan.paths) and self._job.vendor is None:
            # Its verdict is here, so the vendor is not queried.
            self._copy.refresh(self._plan.tasks, logs=logs)
            if has_ended(self._plan.paths):
                self._job.restore()
                return
        # Queried first, so that everything that tasks wrote before the end of the job is read.
        self._job.refresh()
        self._copy.refresh(self._plan.tasks, logs=logs)
        if has_ended(self._plan.paths) or self._job.vendor is None:
            return
        if self._job.over:
            self._conclude(self._job.vendor)
        else:
            self._enforce_cancel(self._job.vendor)
        self._job.cancel_strays()

    def supervised(self) -> bool:
        self.refresh()
        return not (self._job.lost or has_ended(self._plan.paths))

    def merge(self, status: Status) -> Status:
        found = states.merge(status, self._job.vendor, project=str(self._options.project), emulator=self._emulator)
        if found.state is State.LOST and self._job.lost and found.failure is not None:
            lost = replace(found.failure, message=self._job.lost)
            return replace(found, reason=Reason.JOB_LOST, failure=lost)
        return found

    def progress(self) -> Progress | None:
        """Return the training progress in the latest heartbeat, which its first container writes every ten seconds."""
        now = self._clock.monotonic()
        if now - self._progress_read >= _PROGRESS_S:
            self._progress_read = now
            # The status is still useful if the progress cannot be read.
            with suppress(StoreError, ValueError):
                self._copy.read_heartbeat()
        return self._copy.progress

    def history(self) -> Sequence[Moment]:
        """Return what Vertex AI did with its jobs, by its own log as far as that can be read."""
        job, log = self._job.vendor, list[logs.LogEntry]()
        unread: list[Moment] = []
        try:
            if job is not None:
                log = logs.of_service(str(self._options.project), job.id, self._clock)
        except PodliftError as error:
            # The times and the state of the job explain a lot without it.
            unread = [Moment(time=NOW, source=logs.SERVICE, text=str(error))]
        found = unread + history.moments(
            read_events(self._plan.paths, ("final",)),
            job,
            self._job.notes(),
            log,
            provisioning=self._options.provisioning,
            now=self._clock.now(),
        )
        return [
            replace(each, text=self._quoted(each.text), causes=tuple(self._quoted(cause) for cause in each.causes))
            for each in found
        ]

    def _quoted(self, text: str) -> str:
        return service.quoted(text, self._emulator)

    def fetch_outputs(self) -> None:
        """Download the outputs. The model was written directly to the bucket."""
        paths = self._plan.paths
        self._copy.download(["outputs", "model"])
        shutil.rmtree(paths.outputs_model, ignore_errors=True)
        if os.path.isdir(paths.model):
            trees.copy_into(paths.model, paths.outputs_model)

    def logs(self, *, task: str | None, attempt: int | None, follow: bool) -> Iterator[LogLine]:
        """Yield the tasks' lines. Those of "service" are the vendor's own."""
        names = states.replica_names(self._plan.tasks)
        replica = logs.replica_of(task, self._plan.tasks, names)
        if task == logs.SERVICE:
            names = {logs.SERVICE: logs.SERVICE}
        return self._lines(replica, names, attempt, follow)

    def _lines(
        self, replica: str | None, names: dict[str, str], attempt: int | None, follow: bool
    ) -> Iterator[LogLine]:
        number = 1
        while True:
            created = self._wait_for_job(number, follow)
            # A job that was never created has no lines: a resume created the next one.
            if created is not None:
                reader = logs.LogReader(
                    logs.query, str(self._options.project), created.id, polling=self._polling, clock=self._clock
                )
                following = follow and number == self._job.number
                found = reader.follow(replica, self._has_ended) if following else reader.read(replica)
                tasks = [name for key, name in names.items() if name != logs.SERVICE and replica in (None, key)]
                shown = logs.lines(found, names, self._attempt_at, attempt)
                for line in _or_kept(shown, self._kept(number, attempt, tasks)):
                    own = line.task == logs.SERVICE
                    yield replace(line, text=self._quoted(line.text)) if own else line
            if number >= self._job.number:
                return
            number += 1

    def _kept(self, job: int, attempt: int | None, tasks: list[str]) -> Iterator[LogLine]:
        """Yield the lines in the run's directory of those attempts of a job that have started by then."""
        begun = {event.attempt for event in self._started() if event.data.get("job") == job}
        wanted = sorted(number for number in begun if attempt in (None, number))
        yield from tails.lines(self._plan.url, wanted if tasks else [], tasks)

    def _wait_for_job(self, number: int, follow: bool) -> CreatedJob | None:
        while True:
            self.refresh()
            created = self._job.created(number)
            ended = self._job.lost or number < self._job.number or has_ended(self._plan.paths)
            if created is not None or not follow or ended:
                return created
            self._clock.sleep(self._polling.poll_s)

    def _attempt_at(self, time: float) -> int:
        begun: dict[int, float] = {}
        for event in self._started():
            begun[event.attempt] = min(event.time, begun.get(event.attempt, event.time))
        numbers = sorted(begun)
        # Output before the start of an attempt belongs to the previous one, and to the first attempt at the beginning.
        place = bisect_right([begun[number] for number in numbers], time)
        return numbers[max(place - 1, 0)] if numbers else 1

    def _started(self) -> list[Event]:
        return read_events(self._plan.paths, ("attempt_started",))

    def _has_ended(self) -> tuple[bool, float]:
        self.refresh()
        job = self._job.vendor
        return self._job.over, (job.ended or 0.0) if job is not None else 0.0

    def cancel(self, grace_s: float) -> None:
        """Leave a cancel request for the tasks. Cancel the job itself if it does not run yet, or without a grace."""
        self.refresh()
        self._copy.request_cancel(self._job.number - 1, grace_s)
        if self._job.vendor is None and self._job.write_tombstone():
            data = {"state": State.CANCELLED.value, "reason": Reason.CANCELLED.value, "failure": None}
            write_verdict(self._store, self._job.number, self._clock.now(), {**data, "vendor": "", "job": ""})
        job = self._job.vendor
        if job is not None and not job.over and (grace_s <= 0 or job.is_waiting):
            self._job.client.cancel(job.name)
        # The next refresh must not be skipped.
        self._refreshed.clear()

    def _enforce_cancel(self, job: states.VendorJob) -> None:
        if self._cancelled:
            return
        now = self._clock.now()
        if any(now >= each.requested_at + each.grace_s + _CANCEL_MARGIN_S for each in self._cancel_requests()):
            self._job.client.cancel(job.name)
            self._cancelled = True

    def _cancel_requests(self) -> list[CancelRequest]:
        keys = self._copy.cancel_requests(self._job.number - 1)
        return [CancelRequest.parse(bytes(self._store.get(key))) for key in keys]

    def _conclude(self, job: states.VendorJob) -> None:
        """Write the verdict, unless another client was faster, and download it."""
        ended = states.EndedJob(
            events=read_events(self._plan.paths),
            job=job,
            tasks=self._plan.tasks,
            cancel_requested_at=min((each.requested_at for each in self._cancel_requests()), default=None),
            provisioning=self._options.provisioning,
            timeout_s=self._plan.job.limits.timeout_s,
            emulator=self._emulator,
        )
        if not states.is_explained(ended) and self._clock.now() < (job.ended or 0.0) + _ERROR_TEXT_S:
            return
        replica = states.silent_replica(ended)
        if replica:
            output = logs.last_output(logs.query, str(self._options.project), job.id, replica)
            ended = replace(ended, last_output=output)
        write_verdict(self._store, self._job.number, job.ended or self._clock.now(), states.verdict(ended))
        self._copy.refresh(self._plan.tasks, logs=True)


def _or_kept(found: Iterator[LogLine], kept: Iterator[LogLine]) -> Iterator[LogLine]:
    """Yield the service's lines, or if it has none (any more) or refuses them, those in the run's directory."""
    why = "The log service has no lines of this job"
    first = None
    try:
        first = next(found, None)
    except AccessError as error:
        other = next(kept, None)
        if other is None:
            raise
        why, kept = str(error), chain([other], kept)
    if first is not None:
        yield first
        yield from found
        return
    for number, line in enumerate(kept):
        if number == 0:
            _log.warning(
                f"{why.rstrip('.')}. These lines are the last {size(TAIL_BYTES)} of each task, from the run's directory."
            )
        yield line


def write_verdict(store: GcsStore, number: int, time: float, data: Mapping[str, object]) -> None:
    source = source_of("supervisor", number - 1)
    event = Event(attempt=0, source=source, sequence=1, kind="final", time=time, data=dict(data))
    create(store, KEYS.event(0, source, 1, "final"), event.to_json())
