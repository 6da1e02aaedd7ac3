"""Moves active jobs through their states: by the clock, by the exits of containers, and by injected faults."""

from __future__ import annotations

import heapq
import json
import math
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from .. import data_folder
from ..faults import Fault, FaultRules
from . import lifecycle
from .entries import LogEntries
from .launcher import JobRunner, ReplicaGroup, ReplicaLauncher
from .lifecycle import Availability, JobAction, JobStatus, JobTimings, SchedulingTerms, Transition
from .timing import EmulatorClock

_VERSION = 2
_SCHEMA = """
CREATE TABLE jobs (
    id INTEGER PRIMARY KEY, project TEXT NOT NULL, region TEXT NOT NULL, job TEXT NOT NULL, status TEXT NOT NULL
);
CREATE INDEX of_place ON jobs (project, region, id);
CREATE TABLE operations (id INTEGER PRIMARY KEY, place TEXT NOT NULL);
"""
# The longest sleep of the scheduler's thread; every change wakes it.
_SLEEP_S = 5.0
_CLOSE_S = 30.0
LOGS_URL = (
    "https://console.cloud.google.com/logs/viewer?project={project}&resource=ml_job%2Fjob_id%2F{job}"
    "&advancedFilter=resource.type%3D%22ml_job%22%0Aresource.labels.job_id%3D%22{job}%22"
)


@dataclass(frozen=True, kw_only=True)
class JobRow:
    id: int
    project: str
    region: str
    job: dict[str, Any]
    status: JobStatus


class JobTable:
    """The table of jobs. Callers serialize their calls by a lock of their own."""

    def __init__(self, path: Path) -> None:
        self._db = data_folder.open_database(path, _SCHEMA, _VERSION, any_thread=True)

    def close(self) -> None:
        self._db.close()

    def add(self, row: JobRow) -> None:
        values = (row.id, row.project, row.region, json.dumps(row.job), json.dumps(row.status.to_dict()))
        self._db.execute("INSERT INTO jobs VALUES (?, ?, ?, ?, ?)", values)

    def update(self, job: int, status: JobStatus) -> None:
        self._db.execute("UPDATE jobs SET status = ? WHERE id = ?", (json.dumps(status.to_dict()), job))

    def get(self, job: int) -> JobRow | None:
        found = self._db.execute("SELECT * FROM jobs WHERE id = ?", (job,)).fetchone()
        return None if found is None else _row(found)

    def last(self) -> int:
        return int(self._db.execute("SELECT coalesce(max(id), 0) FROM jobs").fetchone()[0])

    def newest(self, project: str, region: str, before: int | None) -> Iterator[JobRow]:
        """Yield the jobs of a location with ids below `before`, the newest first."""
        query = "SELECT * FROM jobs WHERE project = ? AND region = ? AND id < ? ORDER BY id DESC"
        for found in self._db.execute(query, (project, region, 2**63 - 1 if before is None else before)):
            yield _row(found)

    def all_jobs(self) -> list[JobRow]:
        return [_row(found) for found in self._db.execute("SELECT * FROM jobs ORDER BY id")]

    def delete(self, job: int, operation: int, place: str) -> None:
        """Delete a job, and record the operation that did it."""
        self._db.execute("BEGIN IMMEDIATE")
        self._db.execute("DELETE FROM jobs WHERE id = ?", (job,))
        self._db.execute("INSERT INTO operations VALUES (?, ?)", (operation, place))
        self._db.execute("COMMIT")

    def operation(self, operation: int, place: str) -> bool:
        query = "SELECT 1 FROM operations WHERE id = ? AND place = ?"
        return self._db.execute(query, (operation, place)).fetchone() is not None

    def clear(self) -> None:
        self._db.executescript("BEGIN; DELETE FROM jobs; DELETE FROM operations; COMMIT;")


def _row(found: tuple[Any, ...]) -> JobRow:
    number, project, region, job, status = found
    return JobRow(
        id=number, project=project, region=region, job=json.loads(job), status=JobStatus.from_dict(json.loads(status))
    )


@dataclass(kw_only=True)
class _ActiveJob:
    row: JobRow
    terms: SchedulingTerms
    status: JobStatus
    runner: JobRunner | None = None
    held_until: float = 0.0

    @property
    def name(self) -> str:
        return str(self.row.job["displayName"])

    @property
    def busy(self) -> int:
        """The number of machines that it has or is getting."""
        return 0 if self.status.phase in ("queued", "over") else len(self.terms.replicas)


@dataclass(order=True, kw_only=True)
class _TimedFault:
    at: float
    job: int
    fault: Fault = field(compare=False)


class JobScheduler:
    """All jobs that have not ended. Safe to use from any thread; nothing in it waits for a container.

    Jobs beyond `capacity` replicas wait in the queue, as for a quota that is exhausted.
    """

    def __init__(
        self,
        table: JobTable,
        clock: EmulatorClock,
        entries: LogEntries,
        faults: FaultRules,
        timings: JobTimings,
        capacity: int,
    ) -> None:
        self._table, self._clock, self._entries, self._faults = table, clock, entries, faults
        self._timings, self._capacity = timings, capacity
        self._launcher: ReplicaLauncher | None = None
        self.lock = threading.RLock()
        self._wake = threading.Condition(self.lock)
        self._active: dict[int, _ActiveJob] = {}
        self._timed_faults: list[_TimedFault] = []
        self._closed = False
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self, launcher: ReplicaLauncher) -> None:
        """Resume the jobs of the table, and run new ones; `launcher` makes what runs their containers."""
        with self.lock:
            self._launcher = launcher
            for row in self._table.all_jobs():
                self._resume(row)
            self._thread.start()

    def add(self, row: JobRow, actions: Iterable[JobAction]) -> None:
        with self.lock:
            active = self._active[row.id] = _ActiveJob(row=row, terms=scheduling_terms(row), status=row.status)
            hold = self._faults.for_job("hold", active.name)
            if hold is not None:
                active.held_until = math.inf if hold.seconds is None else row.status.created + hold.seconds
            self._perform(active, actions)
            self._wake.notify_all()

    def cancel(self, job: int) -> None:
        self._advance(job, lambda active, now: lifecycle.cancel(active.status, now))

    def is_active(self, job: int) -> bool:
        with self.lock:
            return job in self._active

    def inject(self, job: int, what: str, replica: str) -> bool:
        steps: dict[str, Callable[[_ActiveJob, float], Transition]] = {
            "preempt": lambda active, now: lifecycle.preempt(active.status, active.terms, replica, now),
            "oom": lambda active, now: lifecycle.out_of_memory(active.status, active.terms, replica, now),
            "internal": lambda active, now: lifecycle.internal_error(active.status, active.terms, now),
        }
        with self.lock:
            active = self._active.get(job)
            if active is None or active.status.phase not in lifecycle.ACTIVE:
                return False
            self._advance(job, steps[what])
            return True

    def preempted(self, job: int, replica: str) -> bool:
        with self.lock:
            active = self._active.get(job)
            return active is not None and replica in active.status.preempted

    def clock_moved(self) -> None:
        with self.lock:
            self._recheck_queue()

    def release_held(self) -> None:
        """Release the jobs that a fault holds: other faults are in force now."""
        with self.lock:
            for active in self._active.values():
                active.held_until = 0.0
            self._recheck_queue()

    def stop_all(self) -> None:
        """End the containers of all jobs and drop the jobs, without recording it in the table."""
        with self.lock:
            runners = [active.runner for active in self._active.values() if active.runner is not None]
            self._active.clear()
            self._timed_faults.clear()
        for runner in runners:
            runner.send("close")
        for runner in runners:
            runner.join(_CLOSE_S)

    def close(self) -> None:
        """End all containers; running jobs will have failed when the folder is served again."""
        with self.lock:
            self._closed = True
            self._wake.notify_all()
        self.stop_all()
        with self.lock:
            launcher, self._launcher = self._launcher, None
        if launcher is not None:
            launcher.close()
        if self._thread.is_alive():
            self._thread.join(_CLOSE_S)

    def _resume(self, row: JobRow) -> None:
        if row.status.phase == "over":
            return
        now = self._clock.now()
        status, actions = lifecycle.recover(row.status, now)
        if status.phase != "over":
            status = replace(status, due=now)
        self._table.update(row.id, status)
        active = _ActiveJob(row=row, terms=scheduling_terms(row), status=status)
        if status.phase != "over":
            self._active[row.id] = active
        self._perform(active, actions)

    def _run(self) -> None:
        with self.lock:
            while not self._closed:
                try:
                    sleep_s = self._run_due()
                except Exception:
                    # A defect of the emulator with one job; the others continue.
                    traceback.print_exc()
                    sleep_s = _SLEEP_S
                self._wake.wait(sleep_s)

    def _run_due(self) -> float:
        """Do what is due, and return the time until something else may be."""
        now = self._clock.now()
        while self._timed_faults and self._timed_faults[0].at <= now:
            timed = heapq.heappop(self._timed_faults)
            self.inject(timed.job, timed.fault.kind, timed.fault.replica)
        for job in [
            job for job, active in self._active.items() if active.status.due is not None and active.status.due <= now
        ]:
            self._tick(job)
        times = [active.status.due for active in self._active.values() if active.status.due is not None]
        times += [timed.at for timed in self._timed_faults[:1]]
        if not times:
            return _SLEEP_S
        left_s = max(min(times) - self._clock.now(), 0.0)
        # A frozen clock makes nothing due; `clock_moved` wakes this thread.
        return _SLEEP_S if left_s and self._clock.frozen else min(left_s, _SLEEP_S)

    def _tick(self, job: int) -> None:
        def step(active: _ActiveJob, now: float) -> Transition:
            return lifecycle.tick(active.status, active.terms, now, self._timings, self._availability(active, now))

        self._advance(job, step)

    def _availability(self, active: _ActiveJob, now: float) -> Availability:
        if active.status.phase == "queued":
            if active.held_until > now:
                return Availability(kind="held", until=None if math.isinf(active.held_until) else active.held_until)
            busy = sum(each.busy for each in self._active.values())
            if busy and busy + len(active.terms.replicas) > self._capacity:
                return Availability(kind="held")
        elif active.status.phase == "provisioning" and self._faults.for_job("stockout", active.name):
            return Availability(kind="stockout")
        return Availability()

    def _advance(self, job: int, step: Callable[[_ActiveJob, float], Transition]) -> None:
        with self.lock:
            active = self._active.get(job)
            if active is not None and not self._closed:
                self._apply(active, *step(active, self._clock.now()))

    def _apply(self, active: _ActiveJob, status: JobStatus, actions: list[JobAction]) -> None:
        job, before = active.row.id, active.status
        if status == before and not actions:
            return
        active.status = status
        self._table.update(job, status)
        if status.phase == "over":
            del self._active[job]
        if active.busy < len(active.terms.replicas) and before.phase != "queued":
            self._recheck_queue()
        self._perform(active, actions)
        if status.phase == "running" and before.phase == "starting":
            for fault in self._faults.for_running(active.name):
                at = self._clock.now() + (fault.after_s or 0.0)
                heapq.heappush(self._timed_faults, _TimedFault(at=at, job=job, fault=fault))
        self._wake.notify_all()

    def _perform(self, active: _ActiveJob, actions: Iterable[JobAction]) -> None:
        for action in actions:
            if action.kind == "log":
                self._entries.add_service_line(active.row.project, str(active.row.id), action.text, action.severity)
                continue
            if action.kind == "start" and active.runner is None:
                active.runner = self._runner(active)
            if active.runner is not None:
                active.runner.send(action.kind, action.replica)

    def _runner(self, active: _ActiveJob) -> JobRunner:
        job = active.row.id

        def report(step: Callable[[JobStatus, float], Transition]) -> None:
            self._advance(job, lambda current, now: step(current.status, now))

        def emit(replica: str, stream: str, line: str) -> None:
            self._entries.add_line(active.row.project, str(job), replica, stream, line)
            for fault in self._faults.for_line(active.name, line):
                self.inject(job, fault.kind, fault.replica)

        def make() -> ReplicaGroup:
            if self._launcher is None:
                raise RuntimeError("the scheduler was not started")
            row = active.row
            return self._launcher.make(row.job, job_id=str(job), project=row.project, region=row.region, emit=emit)

        return JobRunner(make, active.terms, self._timings, report)

    def _recheck_queue(self) -> None:
        """Let queued jobs without a deadline try to leave the queue, the oldest first."""
        now = self._clock.now()
        for active in list(self._active.values()):
            if active.status.phase == "queued" and active.status.due is None and active.held_until <= now:
                self._tick(active.row.id)
                if active.status.phase == "queued":
                    break
        self._wake.notify_all()


def scheduling_terms(row: JobRow) -> SchedulingTerms:
    return SchedulingTerms.of(row.job, region=row.region, logs_url=LOGS_URL.format(project=row.project, job=row.id))
