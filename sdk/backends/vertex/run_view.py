"""A client's view of a run on Vertex AI: its records in the bucket, its job at the vendor, and the resulting status.

Such a run has no supervisor. Its tasks write their records, the vendor restarts tasks on preempted machines, and the first
client that sees the end of the job writes the verdict, which then holds for everyone.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

from ...clock import Clock
from ...errors import AlreadyExistsError, MissingError, StoreError
from ...records.events import Event, resume_count, source_of
from ...records.recorder import has_ended, read_events
from ...records.sync.index import KEYS, SYNC_RETRY
from ...records.sync.pull import LocalCopy
from ...spec.plan import Plan
from ...spec.policies import Vertex
from ...status import Progress, Reason, State, Status
from ...storage import trees
from ...storage.gcs.files import BucketFiles
from ...storage.gcs.store import GcsStore
from ..base import LogLine, Observation
from . import create_job, logs, states
from .client import JobClient, OutcomeUnknownError, VertexRejectedError
from .create_job import CreatedJob
from .states import VendorJob

# A run without a job counts as lost after this time: its start may take long, and the list of jobs may be out of date.
_START_LIMIT_S = 600.0
# The job is cancelled this long after the end of the requested grace.
_CANCEL_MARGIN_S = 15.0
_STRAYS_S = 30.0
_PROGRESS_S = 5.0
# A job's error text is available about a minute after its end.
_ERROR_TEXT_S = 120.0


class RunView:
    """The view of one run."""

    def __init__(
        self,
        plan: Plan,
        clock: Clock,
        *,
        jobs: JobClient | None = None,
        query: logs.Query = logs.query,
        polling: logs.Polling | None = None,
    ) -> None:
        self._copy = LocalCopy(plan.paths, plan.url, clock)
        self._plan = plan
        self._clock = clock
        self._options = Vertex.of(plan.target)
        self._jobs = jobs or JobClient(str(self._options.project), clock=clock)
        self._store = GcsStore(plan.url.partition("://")[2], retry=SYNC_RETRY, clock=clock)
        self._files = BucketFiles(plan.url, retry=SYNC_RETRY, clock=clock)
        self._query = query
        self._polling = polling or logs.polling()
        self._created: dict[int, CreatedJob] = {}
        self._job: VendorJob | None = None
        self._lost = ""
        self._refreshed = {False: -self._polling.poll_s, True: -self._polling.poll_s}
        self._searched_strays = -_STRAYS_S
        self._cancelled = False
        self._progress_read = -_PROGRESS_S

    def refresh(self, *, logs: bool = False) -> None:
        """Read what is new, at a limited rate."""
        if self._clock.monotonic() - self._refreshed[logs] >= self._polling.poll_s:
            self._refresh(logs=logs)
            self._refreshed[logs] = self._clock.monotonic()

    def observe(self, plan: Plan) -> Observation:
        """Return whether the run can still get a verdict."""
        self.refresh()
        over = bool(self._lost) or has_ended(self._plan.paths)
        return Observation(supervised=not over, detail=self._lost or (self._job.state if self._job else "no job yet"))

    def merge(self, status: Status) -> Status:
        """Return the status from the records, merged with that of the vendor's job."""
        found = states.merge(status, self._job, project=str(self._options.project))
        if found.state is State.LOST and self._lost and found.failure is not None:
            return replace(found, failure=replace(found.failure, message=self._lost))
        return found

    def progress(self) -> Progress | None:
        """Return the training progress in the latest heartbeat, which its first container writes every ten seconds."""
        now = self._clock.monotonic()
        if now - self._progress_read >= _PROGRESS_S:
            self._progress_read = now
            # The status is still useful if the progress cannot be read.
            with suppress(StoreError, ValueError):
                self._copy.heartbeat()
        return self._copy.progress

    def download_outputs(self) -> None:
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
            if created is None:
                if number == self._job_number():
                    return
                # It was never created. A resume created the next one.
                number += 1
                continue
            job = created.name.rpartition("/")[2]
            reader = logs.LogReader(
                self._query, str(self._options.project), job, polling=self._polling, clock=self._clock
            )
            found = reader.follow(replica, self) if follow and number == self._job_number() else reader.read(replica)
            yield from logs.lines(found, names, self._attempt_at, attempt)
            number += 1
            if number > self._job_number():
                return

    def _wait_for_job(self, number: int, follow: bool) -> CreatedJob | None:
        while True:
            self.refresh()
            created = self._read_created(number)
            ended = self._lost or number < self._job_number() or has_ended(self._plan.paths)
            if created is not None or not follow or ended:
                return created
            self._clock.sleep(self._polling.poll_s)

    def has_ended(self) -> tuple[bool, float]:
        """Return whether the latest job has ended, and when."""
        self.refresh()
        if self._lost:
            return True, 0.0
        job = self._job
        return (job is not None and job.over), (job.ended or 0.0) if job is not None else 0.0

    def cancel(self, grace_s: float) -> None:
        """Leave a cancel request for the tasks. Cancel the job itself if it does not run yet, or without a grace."""
        self.refresh()
        number = self._job_number()
        request = json.dumps({"grace_s": float(grace_s), "requested_at": self._clock.now()}).encode()
        self._store.put_new(KEYS.remote_cancel_request(number - 1, uuid.uuid4().hex[:12]), [request])
        job = self._job or self._write_tombstone(number)
        waiting = job is not None and job.state.removeprefix(states.PREFIX) in ("QUEUED", "PENDING", "PAUSED")
        if job is not None and not job.over and (grace_s <= 0 or waiting):
            self._jobs.cancel(job.name)
        # The next refresh must not be skipped.
        self._refreshed = dict.fromkeys(self._refreshed, -self._polling.poll_s)

    def _write_tombstone(self, number: int) -> VendorJob | None:
        """End a run that has no job yet. Return the job if another process created it first."""
        created = create_job.write_tombstone(self._store, number)
        if created.name:
            return self._jobs.get(created.name)
        create_job.cancel_strays(self._jobs, self._options.regions, self._plan.run_id, number, created)
        data = {"state": State.CANCELLED.value, "reason": Reason.CANCELLED.value, "failure": None}
        write_verdict(self._store, number, self._clock.now(), {**data, "vendor": "", "job": ""})
        return None

    def _refresh(self, *, logs: bool) -> None:
        if has_ended(self._plan.paths) and self._job is None:
            # Its verdict is here, so the vendor is not queried.
            self._copy.refresh(self._plan.tasks, logs=logs)
            if has_ended(self._plan.paths):
                self._job_from_verdict()
                return
        # Queried first, so that everything that tasks wrote before the end of the job is read.
        self._refresh_job()
        self._copy.refresh(self._plan.tasks, logs=logs)
        if has_ended(self._plan.paths) or self._job is None:
            return
        if self._job.over:
            self._conclude()
        else:
            self._enforce_cancel()
        self._cancel_strays()

    def _refresh_job(self) -> None:
        number = self._job_number()
        created = self._read_created(number) or self._find_by_label(number)
        self._lost = ""
        if created is None:
            self._job = None
            self._lost = self._why_lost(number)
            return
        if has_ended(self._plan.paths) and self._job is not None and self._job.name == created.name and self._job.over:
            return
        try:
            self._job = self._jobs.get(created.name)
        except MissingError:
            self._job, self._lost = None, states.lost(created.name).message
        except OutcomeUnknownError:
            # While the service does not respond, the last known state remains valid.
            if self._job is None or self._job.name != created.name:
                raise

    def _read_created(self, number: int) -> CreatedJob | None:
        if number not in self._created:
            created = create_job.read_created(self._store, number)
            if created is None or not created.name:
                return None
            self._created[number] = created
        return self._created[number]

    def _find_by_label(self, number: int) -> CreatedJob | None:
        """Return the job of a client that was killed before it recorded the name."""
        if not self._has(KEYS.intent(number)):
            return None
        found = create_job.find_labelled(self._jobs, self._options.regions, self._plan.run_id, number)
        if not found:
            return None
        created = create_job.record_created(
            self._store, self._jobs, number, CreatedJob(name=found[0].name, unsure=True)
        )
        self._created[number] = created
        return created

    def _why_lost(self, number: int) -> str:
        """Return why no job will be created any more, or "" while one may be."""
        resumed = f"{KEYS.events}/0000.{source_of('client', number - 1)}.000001.resumed.json"
        for key in (KEYS.intent(number), resumed if number > 1 else KEYS.plan):
            with suppress(MissingError):
                if self._files.age_s(key) < _START_LIMIT_S:
                    return ""
                return "The process that should have created its job ended too early, and Vertex AI has no such job."
        return "Its job was never requested."

    def _has(self, key: str) -> bool:
        try:
            self._store.stat(key)
        except MissingError:
            return False
        return True

    def _job_from_verdict(self) -> None:
        """Restore the vendor's last state from the verdict."""
        final = next((event for event in reversed(self._events("final")) if event.data.get("job")), None)
        if final is not None and resume_count(self._events("resumed")) + 1 == self._job_number():
            self._job = VendorJob(name=str(final.data["job"]), state=str(final.data["vendor"]), ended=final.time)

    def _conclude(self) -> None:
        """Write the verdict, unless another client was faster, and download it."""
        if self._job is None:
            return
        ended = states.EndedJob(
            events=read_events(self._plan.paths),
            job=self._job,
            tasks=self._plan.tasks,
            cancel_requested_at=min((_field(each, "requested_at") for each in self._cancel_requests()), default=None),
            provisioning=self._options.provisioning,
            timeout_s=self._plan.job.limits.timeout_s,
        )
        if not states.is_explained(ended) and self._clock.now() < (self._job.ended or 0.0) + _ERROR_TEXT_S:
            return
        replica = states.silent_replica(ended)
        if replica:
            output = logs.last_output(self._query, str(self._options.project), self._job.id, replica)
            ended = replace(ended, last_output=output)
        write_verdict(self._store, self._job_number(), self._job.ended or self._clock.now(), states.verdict(ended))
        self._copy.refresh(self._plan.tasks, logs=True)

    def _enforce_cancel(self) -> None:
        """Cancel the job if its tasks did not end within the requested grace."""
        if self._job is None or self._cancelled:
            return
        for request in self._cancel_requests():
            if self._clock.now() >= _field(request, "requested_at") + _field(request, "grace_s") + _CANCEL_MARGIN_S:
                self._jobs.cancel(self._job.name)
                self._cancelled = True
                return

    def _cancel_requests(self) -> list[dict[str, Any]]:
        prefix = KEYS.remote_cancel_request(self._job_number() - 1, "").removesuffix(".cancel.json")
        found = []
        for stat in self._store.list(prefix):
            try:
                found.append(dict(json.loads(bytes(self._store.get(stat.key)))))
            except (ValueError, TypeError):
                # An unreadable request still asks for the end of the run.
                found.append({})
        return found

    def _cancel_strays(self) -> None:
        """Cancel a second job that an outdated list had hidden from the creator of this one."""
        number, now = self._job_number(), self._clock.monotonic()
        created = self._created.get(number)
        if created is None or not created.unsure or now - self._searched_strays < _STRAYS_S:
            return
        self._searched_strays = now
        with suppress(VertexRejectedError):
            create_job.cancel_strays(self._jobs, self._options.regions, self._plan.run_id, number, created)

    def _job_number(self) -> int:
        """Return the number of the latest job. Each resume creates one."""
        return resume_count(self._events("resumed")) + 1

    def _events(self, kind: str) -> list[Event]:
        return read_events(self._plan.paths, (kind,)) if os.path.isdir(self._plan.paths.events) else []

    def _attempt_at(self, time: float) -> int:
        begun: dict[int, float] = {}
        for event in self._events("attempt_started"):
            begun[event.attempt] = min(event.time, begun.get(event.attempt, event.time))
        numbers = sorted(begun)
        # Output before the start of an attempt belongs to the previous one, and to the first attempt at the beginning.
        place = bisect_right([begun[number] for number in numbers], time)
        return numbers[max(place - 1, 0)] if numbers else 1


def _field(request: dict[str, Any], name: str) -> float:
    value = request.get(name)
    return float(value) if isinstance(value, (int, float)) else 0.0


def write_verdict(store: GcsStore, number: int, time: float, data: dict[str, Any]) -> None:
    """Write the verdict on a run, unless there is one."""
    source = source_of("supervisor", number - 1)
    event = Event(attempt=0, source=source, sequence=1, kind="final", time=time, data=data)
    with suppress(AlreadyExistsError):
        store.put_new(KEYS.event(0, source, 1, "final"), [event.to_json()])
