"""Makes the attempts of all jobs when they are due, by the emulator's clock, which can be moved ahead from slot to slot."""

from __future__ import annotations

import math
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

from ..faults import About, Fault, FaultRules
from ..messages import duration_s
from ..vertex.errors import invalid
from ..vertex.timing import EmulatorClock, format_time
from .attempts import Attempt
from .executions import Execution, following_slot, next_slot, retried, slot_text
from .post import DEADLINE_EXCEEDED, UNAVAILABLE, Outcome, send
from .table import JobKey, ScheduledJob, SchedulerTable

# The longest sleep of the dispatcher's thread; every change wakes it.
_SLEEP_S = 5.0
# The resolution of a Unix time.
_NEAR_S = 1e-6
_CLOSE_S = 30.0
# How long a reset waits for attempts: their targets may never answer.
_CLEAR_S = 0.5
# The attempts that are kept, and that one request makes at most: two weeks of a job that fires every minute.
_RECENT = 20_000
_TOO_MANY = "One request makes at most {} attempts: the clock stopped at {}. Next: move it ahead again."
_EARLY_S, _LATE_S = 0.2, 3000.0
ENABLED, PAUSED, DISABLED, UPDATE_FAILED = "ENABLED", "PAUSED", "DISABLED", "UPDATE_FAILED"

# Moves the clock ahead by seconds, with or without the jobs of Vertex AI; False if it cannot go there.
MoveClock = Callable[[float, bool], bool]


class Dispatcher:
    """Safe to use from any thread. Each attempt has its own thread; a job has one outstanding execution."""

    def __init__(
        self, table: SchedulerTable, clock: EmulatorClock, faults: FaultRules, move: MoveClock, own_url: str
    ) -> None:
        self._table, self._clock, self._faults, self._move, self._own_url = table, clock, faults, move, own_url
        self.lock = threading.RLock()
        self._changed = threading.Condition(self.lock)
        self._advancing = threading.Lock()
        self._jobs = {row.key: row for row in table.all_jobs()}
        self._outstanding: Counter[JobKey] = Counter()
        self._attempts: list[Attempt] = []
        self._attempt_count = self._generation = 0
        # Where `advance` moves the clock, and whether the jobs of Vertex AI grow older by that.
        self._goal: float | None = None
        self._goal_jobs = False
        self._failure: Exception | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        with self.lock:
            self._closed = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(_CLOSE_S)

    def get(self, key: JobKey) -> ScheduledJob | None:
        with self.lock:
            return self._jobs.get(key)

    def all_jobs(self) -> list[ScheduledJob]:
        with self.lock:
            return list(self._jobs.values())

    def store(self, row: ScheduledJob) -> None:
        with self.lock:
            # First: a job that could not be stored does not exist, and its client sends it again.
            self._table.store(row)
            self._jobs[row.key] = row
            self._changed.notify_all()

    def delete(self, key: JobKey) -> None:
        with self.lock:
            self._table.delete(key)
            self._jobs.pop(key, None)

    def clear(self) -> None:
        """Remove all jobs and attempts. Waits for outstanding attempts; a later end of one has no effect."""
        with self.lock:
            self._table.clear()
            self._jobs.clear()
            self._goal = None
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._outstanding.total(), _CLEAR_S)
            self._generation += 1
            self._outstanding.clear()
            self._attempts.clear()

    def scheduled(self, row: ScheduledJob, slot: float | None = None, not_before: float = 0.0) -> ScheduledJob:
        """Return a job with its next execution: of `slot`, or of the next slot; with none unless it is enabled."""
        if row.job["state"] != ENABLED:
            return replace(row, execution=None)
        slot = next_slot(row.job, self._clock.now()) if slot is None else slot
        early, late = (self._faults.for_job(kind, _about(row)) for kind in ("early", "late"))
        at = slot - _seconds(early, _EARLY_S) + _seconds(late, _LATE_S)
        return replace(row, execution=Execution(slot=slot, at=max(at, not_before)))

    def faults_changed(self) -> None:
        """Let the rules in force now decide when the next executions are delivered."""
        with self.lock:
            for row in [job for job in self._jobs.values() if job.execution and not job.execution.retries]:
                if not self._outstanding[row.key] and row.execution is not None:
                    self.store(self.scheduled(row, row.execution.slot))

    def run_now(self, row: ScheduledJob) -> None:
        with self.lock:
            now = self._clock.now()
            self._start(row, Execution(slot=now, at=now), forced=True)

    def attempts(self) -> list[dict[str, Any]]:
        with self.lock:
            return [asdict(attempt) for attempt in self._attempts]

    def advance(self, seconds: float, *, jobs: bool) -> list[dict[str, Any]] | None:
        """Move the clock ahead, with a stop at each attempt that is due on the way until it has ended.

        Returns the attempts, or None if the clock cannot go there. All attempts that were outstanding have ended, too.
        VertexApiError if the clock stopped on the way, after too many attempts; any other error that stopped it is raised, too.
        """
        with self._advancing, self.lock:
            if not self._clock.reaches(seconds):
                return None
            earlier = self._attempt_count
            self._goal, self._goal_jobs, self._failure = self._clock.now() + seconds, jobs, None
            self._changed.notify_all()
            while self._goal is not None and not self._closed:
                if self._attempt_count - earlier >= _RECENT:
                    self._goal = None
                    raise invalid([("advance_s", _TOO_MANY.format(_RECENT, format_time(self._clock.now())))])
                self._changed.wait(_SLEEP_S)
            if self._failure is not None:
                raise self._failure
            return [asdict(attempt) for attempt in self._attempts if attempt.number > earlier]

    def _run(self) -> None:
        with self.lock:
            while not self._closed:
                try:
                    sleep_s = self._step()
                except Exception as error:
                    # A defect of the emulator, or a full disk: the clock stays where it is.
                    traceback.print_exc()
                    sleep_s, self._goal, self._failure = _SLEEP_S, None, error
                    self._changed.notify_all()
                if sleep_s > 0:
                    self._changed.wait(sleep_s)

    def _step(self) -> float:
        """Start the due executions, and return the time until the next one may be due."""
        waiting = [
            (row.execution.at, row.key, row.execution)
            for row in self._jobs.values()
            if row.execution is not None and not self._outstanding[row.key]
        ]
        coming = min((at for at, _, _ in waiting), default=math.inf)
        now = self._clock.now()
        if coming <= now + _NEAR_S:
            for at, key, execution in sorted(waiting, key=lambda each: each[:2]):
                if at <= now + _NEAR_S:
                    self._start(self._jobs[key], execution)
            return 0.0
        if self._goal is None:
            # A frozen clock makes nothing due.
            return _SLEEP_S if self._clock.frozen else min(coming - now, _SLEEP_S)
        if self._outstanding.total():
            # The end of an attempt wakes this thread.
            return _SLEEP_S
        if now < min(self._goal, coming):
            self._move(min(self._goal, coming) - now, self._goal_jobs)
            self._table.store_move(*self._clock.moves[-1])
        if coming > self._goal + _NEAR_S:
            self._goal = None
            self._changed.notify_all()
        return 0.0

    def _start(self, row: ScheduledJob, execution: Execution, *, forced: bool = False) -> None:
        if not forced and self._faults.for_job("disable", _about(row)):
            self.store(replace(row, job={**row.job, "state": DISABLED}, execution=None))
            return
        # An execution counts as due shortly before its time; its attempt still begins no earlier than that.
        began = max(self._clock.now(), execution.at)
        self.store(replace(row, job={**row.job, "lastAttemptTime": format_time(began)}))
        self._outstanding[row.key] += 1
        about = (self._generation, row, execution, began, forced)
        threading.Thread(target=self._attempt, args=about, daemon=True).start()

    def _attempt(self, generation: int, row: ScheduledJob, execution: Execution, began: float, forced: bool) -> None:
        lasted_s = 0.0
        try:
            outcome, lasted_s = self._deliver(row, execution)
        except Exception as error:
            traceback.print_exc()
            outcome = Outcome.of(500, f"{type(error).__name__}: {error}")
        with self.lock:
            if generation != self._generation:
                return
            self._outstanding[row.key] -= 1
            self._attempt_count += 1
            attempt = Attempt(
                number=self._attempt_count,
                job=row.job["name"],
                schedule_time=slot_text(row.job, execution.slot),
                attempt_time=format_time(began),
                retry=execution.retries,
                forced=forced,
                **vars(outcome),
            )
            self._attempts = [*self._attempts[1 - _RECENT :], attempt]
            self._finish(row, execution, outcome, began, max(self._clock.now(), began + lasted_s))
            self._changed.notify_all()

    def _finish(self, before: ScheduledJob, execution: Execution, outcome: Outcome, began: float, ended: float) -> None:
        row = self._jobs.get(before.key)
        if row is None or self._closed:
            return
        row = replace(row, job={**row.job, "status": {"code": outcome.code} if outcome.code else {}})
        if row.execution == execution:
            retry = retried(row.job, execution, began, ended) if outcome.code else None
            if retry is not None:
                row = replace(row, execution=retry)
            else:
                row = self.scheduled(row, following_slot(row.job, execution, ended), ended)
        self.store(row)

    def _deliver(self, row: ScheduledJob, execution: Execution) -> tuple[Outcome, float]:
        """Send the request, twice if a fault demands it; return the outcome, and its least duration in seconds."""
        about = _about(row)
        outcome, lasted_s = self._send(row, execution, self._faults.for_request("jobs.attempt", about))
        if self._faults.for_job("duplicate", about):
            outcome, lasted_s = self._send(row, execution, [])
        return outcome, lasted_s

    def _send(self, row: ScheduledJob, execution: Execution, faults: list[Fault]) -> tuple[Outcome, float]:
        deadline_s = duration_s(row.job["attemptDeadline"])
        failure = next((fault for fault in faults if fault.kind != "latency"), None)
        for fault in faults:
            if fault.kind == "latency":
                time.sleep(fault.seconds or 0.0)
        outcome = Outcome(code=0)
        if failure is None or failure.kind.endswith("_after"):
            outcome = send(row.job["httpTarget"], _headers(row, execution.slot), self._own_url, deadline_s)
        if failure is None:
            return outcome, 0.0
        if failure.kind.startswith("silent"):
            # The deadline passes on the clock alone.
            return Outcome(code=DEADLINE_EXCEEDED, text=f"There was no answer within {deadline_s:g} s."), deadline_s
        if failure.kind.startswith("drop"):
            return Outcome(code=UNAVAILABLE, text="Injected fault: the connection was cut."), 0.0
        return Outcome.of(403 if failure.kind == "deny" else failure.status, f"Injected fault: {failure.kind}."), 0.0


def _headers(row: ScheduledJob, slot: float) -> dict[str, str]:
    """Return the headers that the service adds to a request for a slot."""
    return {
        "X-CloudScheduler": "true",
        "X-CloudScheduler-JobName": row.key.id,
        "X-CloudScheduler-ScheduleTime": slot_text(row.job, slot),
    }


def _about(row: ScheduledJob) -> About:
    return About(row.key.id, row.key.region, "scheduler")


def _seconds(fault: Fault | None, default: float) -> float:
    return 0.0 if fault is None else default if fault.seconds is None else fault.seconds
