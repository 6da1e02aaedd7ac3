"""Moves active jobs through their states: by the clock, by the exits of containers, and by injected faults."""

from __future__ import annotations

import json
import math
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from .. import data_folder
from ..faults import About, Fault, FaultRules
from .entries import SERVICE, LogEntries
from .launcher import JobRunner, ReplicaGroup, ReplicaLauncher
from .lifecycle import ACTIVE, Availability, JobStatus, JobTimings, Lifecycle, SchedulingTerms
from .timing import EmulatorClock

_VERSION = 2
_SCHEMA = """
CREATE TABLE jobs (
    id INTEGER PRIMARY KEY, project TEXT NOT NULL, region TEXT NOT NULL, job TEXT NOT NULL, status TEXT NOT NULL,
    deleted INTEGER NOT NULL DEFAULT 0
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
class ResourceRow:
    """The stored resource of a place; `project` is a number."""

    id: int
    project: str
    region: str

    @property
    def display_name(self) -> str:
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class JobRow(ResourceRow):
    job: dict[str, Any]
    status: JobStatus
    deleted: bool = False  # Only its pipeline still shows it

    @property
    def display_name(self) -> str:
        return str(self.job["displayName"])


class JobTable:
    """The table of jobs. Callers serialize their calls by their own lock."""

    def __init__(self, path: Path) -> None:
        self._db = data_folder.open_database(path, _SCHEMA, _VERSION, any_thread=True)

    def close(self) -> None:
        self._db.close()

    def add(self, row: JobRow) -> None:
        values = (row.id, row.project, row.region, json.dumps(row.job), json.dumps(row.status.to_dict()))
        self._db.execute("INSERT INTO jobs VALUES (?, ?, ?, ?, ?, 0)", values)

    def update(self, job: int, status: JobStatus) -> None:
        self._db.execute("UPDATE jobs SET status = ? WHERE id = ?", (json.dumps(status.to_dict()), job))

    def get(self, job: int) -> JobRow | None:
        row = self._db.execute("SELECT * FROM jobs WHERE id = ?", (job,)).fetchone()
        return None if row is None else _row(row)

    def last(self) -> int:
        return int(self._db.execute("SELECT coalesce(max(id), 0) FROM jobs").fetchone()[0])

    def newest(self, project: str, region: str, before: int | None) -> Iterator[JobRow]:
        """Yield the jobs of a location with ids below `before`, the newest first."""
        query = "SELECT * FROM jobs WHERE project = ? AND region = ? AND id < ? AND NOT deleted ORDER BY id DESC"
        for row in self._db.execute(query, (project, region, 2**63 - 1 if before is None else before)):
            yield _row(row)

    def all_jobs(self) -> list[JobRow]:
        return [_row(row) for row in self._db.execute("SELECT * FROM jobs ORDER BY id")]

    def delete(self, job: int) -> None:
        self._db.execute("UPDATE jobs SET deleted = 1 WHERE id = ?", (job,))

    def add_operation(self, operation: int, place: str) -> None:
        self._db.execute("INSERT INTO operations VALUES (?, ?)", (operation, place))

    def operation(self, operation: int, place: str) -> bool:
        query = "SELECT 1 FROM operations WHERE id = ? AND place = ?"
        return self._db.execute(query, (operation, place)).fetchone() is not None

    def clear(self) -> None:
        self._db.executescript("BEGIN; DELETE FROM jobs; DELETE FROM operations; COMMIT;")


def _row(columns: tuple[Any, ...]) -> JobRow:
    number, project, region, job, status, deleted = columns
    return JobRow(
        id=number,
        project=project,
        region=region,
        job=json.loads(job),
        status=JobStatus.from_dict(json.loads(status)),
        deleted=bool(deleted),
    )


@dataclass(kw_only=True)
class _ActiveJob:
    row: JobRow
    terms: SchedulingTerms
    life: Lifecycle
    runner: JobRunner | None = None
    held_until: float = 0.0

    @property
    def about(self) -> About:
        return About(self.row.display_name, self.row.region)

    @property
    def busy(self) -> int:
        """The number of machines that it has or is getting."""
        return 0 if self.life.status.stage in ("queued", "over") else len(self.terms.replicas)


class _TimedFault(NamedTuple):
    at: float
    job: int
    fault: Fault


def join_all(runners: Sequence[JobRunner]) -> None:
    for runner in runners:
        runner.join(_CLOSE_S)


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
        """Resume the jobs of the table, and run new ones; `launcher` makes their containers."""
        with self.lock:
            self._launcher = launcher
            for row in self._table.all_jobs():
                self._resume(row)
            self._thread.start()

    def add(self, row: JobRow) -> JobRow:
        """Store a new job and return it as it is in the queue."""
        with self.lock:
            active = self._make(row)
            active.life.enqueue()
            row = replace(row, status=active.life.status)
            # First: a job that could not be stored does not exist, and its client sends it again.
            self._table.add(row)
            self._active[row.id] = active
            self._hold(active)
            self._perform(active)
            self._wake.notify_all()
            return row

    def _hold(self, active: _ActiveJob) -> None:
        """Leave a new job in the queue if a fault demands it."""
        created = active.row.status.created
        hold, expire = self._faults.for_job("hold", active.about), self._faults.for_job("expire", active.about)
        if hold is not None:
            active.held_until = math.inf if hold.seconds is None else created + hold.seconds
        if expire is not None:
            active.held_until = math.inf
            self._plan_fault(created + (expire.seconds or 0.0), active.row.id, expire)

    def _plan_fault(self, at: float, job: int, fault: Fault) -> None:
        self._timed_faults.append(_TimedFault(at, job, fault))
        self._timed_faults.sort(key=lambda timed: timed.at)

    def cancel(self, job: int) -> None:
        self._advance(job, Lifecycle.cancel)

    def _add_service_line(self, active: _ActiveJob, text: str, severity: str) -> None:
        late_s = self._delay(active, SERVICE, text)
        if late_s is not None:
            times = {"late_s": late_s, "behind_s": active.life.status.behind}
            self._entries.add_service_line(active.row.project, str(active.row.id), text, severity, **times)

    def _delay(self, active: _ActiveJob, writer: str, line: str) -> float | None:
        """Return how long the log does not show a line; None if it is lost."""
        faults = self._faults.for_entry(active.about, writer, line)
        if any(fault.kind == "lost_line" for fault in faults):
            return None
        return max((math.inf if fault.seconds is None else fault.seconds for fault in faults), default=0.0)

    def inject(self, job: int, what: str, replica: str) -> bool:
        steps: dict[str, Callable[[Lifecycle], None]] = {
            "preempt": lambda life: life.preempt(replica),
            "kill": lambda life: life.kill(replica),
            "oom": lambda life: life.out_of_memory(replica),
            "internal": Lifecycle.internal_error,
            "expire": Lifecycle.expire,
        }
        with self.lock:
            active = self._active.get(job)
            if active is None or (what != "expire" and active.life.status.stage not in ACTIVE):
                return False
            self._advance(job, steps[what])
            return True

    def preempted(self, job: int, replica: str) -> bool:
        with self.lock:
            active = self._active.get(job)
            return active is not None and replica in active.life.status.preempted

    def advance(self, seconds: float, jobs: bool) -> bool:
        """Move the clock ahead; unless `jobs`, the clocks of jobs and of the faults that meet them stay where they are."""
        with self.lock:
            if not self._clock.advance(seconds):
                return False
            if not jobs:
                for active in self._active.values():
                    active.life.fall_behind(seconds)
                    active.held_until += seconds if active.held_until else 0.0
                    if active.life.status.stage not in ACTIVE:
                        self._table.update(active.row.id, active.life.status)
                self._timed_faults = [timed._replace(at=timed.at + seconds) for timed in self._timed_faults]
            self._recheck_queue()
            return True

    def release_held(self) -> None:
        """Release the jobs that a fault held, unless the faults that are in force now hold them, too."""
        with self.lock:
            for active in [job for job in self._active.values() if job.held_until]:
                hold = self._faults.for_job("hold", active.about)
                kept_s = 0.0 if hold is None else math.inf if hold.seconds is None else hold.seconds
                active.held_until = self._clock.now() + kept_s if kept_s else 0.0
            self._entries.show_late_lines()
            self._recheck_queue()

    def drop_all(self) -> list[JobRunner]:
        """Drop all jobs, without recording it in the table; return the runners of their containers, which are ending."""
        with self.lock:
            runners = [active.runner for active in self._active.values() if active.runner is not None]
            self._active.clear()
            self._timed_faults.clear()
        for runner in runners:
            runner.send("close")
        return runners

    def close(self) -> None:
        """End all containers; running jobs will have failed when the folder is served again."""
        with self.lock:
            self._closed = True
            self._wake.notify_all()
        join_all(self.drop_all())
        with self.lock:
            launcher, self._launcher = self._launcher, None
        if launcher is not None:
            launcher.close()
        if self._thread.is_alive():
            self._thread.join(_CLOSE_S)

    def _make(self, row: JobRow) -> _ActiveJob:
        logs_url = LOGS_URL.format(project=row.project, job=row.id)
        terms = SchedulingTerms.of(row.job, region=row.region, logs_url=logs_url)
        return _ActiveJob(row=row, terms=terms, life=Lifecycle(terms, self._timings, row.status))

    def _resume(self, row: JobRow) -> None:
        if row.status.stage == "over":
            return
        active = self._active[row.id] = self._make(row)
        self._advance(row.id, Lifecycle.recover)
        if active.life.status.stage != "over":
            active.life.status = replace(active.life.status, due=self._now(active))

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
        """Do the due work, and return the time until more may be due."""
        now = self._clock.now()
        while self._timed_faults and self._timed_faults[0].at <= now:
            _, job, fault = self._timed_faults.pop(0)
            self.inject(job, fault.kind, fault.replica)
        for job, due_at in self._due().items():
            if due_at <= now:
                self._tick(job)
        times = list(self._due().values())
        times += [timed.at for timed in self._timed_faults[:1]]
        if not times:
            return _SLEEP_S
        left_s = max(min(times) - self._clock.now(), 0.0)
        # A frozen clock makes nothing due; `advance` wakes this thread.
        return _SLEEP_S if left_s and self._clock.frozen else min(left_s, _SLEEP_S)

    def _due(self) -> dict[int, float]:
        """Return when time alone changes a job, for each with such a time."""
        statuses = ((job, active.life.status) for job, active in self._active.items())
        return {job: status.due + status.behind for job, status in statuses if status.due is not None}

    def _now(self, active: _ActiveJob) -> float:
        """Return the time of a job's own clock."""
        return self._clock.now() - active.life.status.behind

    def _tick(self, job: int) -> None:
        if job in self._active:
            availability = self._availability(self._active[job])
            self._advance(job, lambda life: life.tick(availability))

    def _availability(self, active: _ActiveJob) -> Availability:
        if active.life.status.stage == "queued":
            if active.held_until > self._clock.now():
                return Availability(kind="held", until=active.held_until - active.life.status.behind)
            busy = sum(other.busy for other in self._active.values())
            if busy and busy + len(active.terms.replicas) > self._capacity:
                return Availability(kind="held")
        elif active.life.status.stage == "provisioning" and self._faults.for_job("stockout", active.about):
            return Availability(kind="stockout")
        return Availability()

    def _advance(self, job: int, step: Callable[[Lifecycle], None]) -> None:
        """Let an event happen to a job, and perform the actions that follow from it."""
        with self.lock:
            active = self._active.get(job)
            if active is None or self._closed:
                return
            life, before = active.life, active.life.status
            life.now = self._now(active)
            step(life)
            if life.status == before and not life.actions:
                return
            self._table.update(job, life.status)
            if life.status.stage == "over":
                del self._active[job]
            if active.busy < len(active.terms.replicas) and before.stage != "queued":
                self._recheck_queue()
            self._perform(active)
            if life.status.stage == "running" and before.stage == "starting":
                for fault in self._faults.for_running(active.about):
                    self._plan_fault(self._clock.now() + (fault.after_s or 0.0), job, fault)
            self._wake.notify_all()

    def _perform(self, active: _ActiveJob) -> None:
        actions, active.life.actions = active.life.actions, []
        for action in actions:
            if action.kind == "log":
                self._add_service_line(active, action.text, action.severity)
                continue
            if action.kind == "start" and active.runner is None:
                active.runner = self._runner(active)
            if active.runner is not None:
                active.runner.send(action.kind, action.replica)

    def _runner(self, active: _ActiveJob) -> JobRunner:
        row = active.row

        def emit(replica: str, stream: str, line: str) -> None:
            late_s = self._delay(active, replica, line)
            if late_s is not None:
                times = {"late_s": late_s, "behind_s": active.life.status.behind}
                self._entries.add_line(row.project, str(row.id), replica, stream, line, **times)
            for fault in self._faults.for_line(active.about, replica, line):
                self.inject(row.id, fault.kind, fault.replica)

        def make() -> ReplicaGroup:
            if self._launcher is None:
                raise RuntimeError("the scheduler was not started")
            return self._launcher.make(row.job, job_id=str(row.id), project=row.project, region=row.region, emit=emit)

        return JobRunner(make, self._timings.grace_s, partial(self._advance, row.id))

    def _recheck_queue(self) -> None:
        """Let queued jobs without a deadline try to leave the queue, the oldest first."""
        now = self._clock.now()
        for active in list(self._active.values()):
            is_waiting = active.life.status.stage == "queued" and active.life.status.due is None
            if is_waiting and active.held_until <= now:
                self._tick(active.row.id)
                if active.life.status.stage == "queued":
                    break
        self._wake.notify_all()
