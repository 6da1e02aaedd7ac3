"""Drives the jobs that are not over through their lives: by the clock, by what becomes of containers, by what tests ask for."""

from __future__ import annotations

import heapq
import math
import threading
import traceback
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass, field, replace

from . import lifecycle
from .entries import Entries
from .faults import Fault, Faults
from .gangs import Gang, Gangs
from .runner import Runner
from .states import Act, Knobs, Life, Market, Step, Terms
from .tables import JobTable, Row
from .timing import EmulatorClock

# How long the thread that drives the jobs sleeps at most: whatever changes wakes it.
_SLEEP_S = 5.0
_CLOSE_S = 30.0
LOGS_URL = (
    "https://console.cloud.google.com/logs/viewer?project={project}&resource=ml_job%2Fjob_id%2F{job}"
    "&advancedFilter=resource.type%3D%22ml_job%22%0Aresource.labels.job_id%3D%22{job}%22"
)


@dataclass(kw_only=True)
class _Live:
    """A job that is not over."""

    row: Row
    terms: Terms
    life: Life
    runner: Runner | None = None
    held_until: float = 0.0

    @property
    def name(self) -> str:
        """Its display name."""
        return str(self.row.job["displayName"])

    @property
    def busy(self) -> int:
        """How many machines it has or is getting."""
        return 0 if self.life.phase in ("queued", "over") else len(self.terms.replicas)


@dataclass(order=True, kw_only=True)
class _Alarm:
    at: float
    job: int
    fault: Fault = field(compare=False)


class Driver:
    """All jobs that are not over. Any thread may use it; nothing in it waits for a container.

    Args:
        table: where jobs are kept.
        clock: the emulator's.
        entries: where their lines go.
        faults: what goes wrong.
        knobs: how long the phases take.
        capacity: how many replicas run at the same time; jobs beyond wait in the queue, as for a quota that is in use.
    """

    def __init__(
        self,
        table: JobTable,
        clock: EmulatorClock,
        entries: Entries,
        faults: Faults,
        knobs: Knobs,
        capacity: int,
    ) -> None:
        self._table, self._clock, self._entries, self._faults = table, clock, entries, faults
        self._knobs, self._capacity = knobs, capacity
        self._gangs: Gangs | None = None
        self.lock = threading.RLock()
        self._wake = threading.Condition(self.lock)
        self._live: dict[int, _Live] = {}
        self._alarms: list[_Alarm] = []
        self._closed = False
        self._thread = threading.Thread(target=self._drive, daemon=True)

    def start(self, gangs: Gangs) -> None:
        """Go on with the jobs of the table, and with those that come.

        Args:
            gangs: makes what runs their containers.
        """
        with self.lock:
            self._gangs = gangs
            for row in self._table.every():
                self._resume(row)
            self._thread.start()

    def add(self, row: Row, acts: Iterable[Act]) -> None:
        """Take over a job that was just created."""
        with self.lock:
            live = self._live[row.id] = _Live(row=row, terms=terms(row), life=row.life)
            hold = self._faults.job("hold", live.name)
            if hold is not None:
                live.held_until = math.inf if hold.seconds is None else row.life.created + hold.seconds
            self._perform(live, acts)
            self._wake.notify_all()

    def cancel(self, job: int) -> None:
        """Begin to cancel a job; nothing happens to one that is over."""
        self._advance(job, lambda live, now: lifecycle.cancelled(live.life, now))

    def is_live(self, job: int) -> bool:
        """True for a job that is not over."""
        with self.lock:
            return job in self._live

    def happen(self, job: int, what: str, replica: str) -> bool:
        """Let a preemption ("preempt"), an "oom" or an "internal" error happen; False for a job that does not run."""
        steps: dict[str, Callable[[_Live, float], Step]] = {
            "preempt": lambda live, now: lifecycle.preempt(live.life, live.terms, replica, now),
            "oom": lambda live, now: lifecycle.out_of_memory(live.life, live.terms, replica, now),
            "internal": lambda live, now: lifecycle.internal_error(live.life, live.terms, now),
        }
        with self.lock:
            live = self._live.get(job)
            if live is None or live.life.phase not in lifecycle.ACTIVE:
                return False
            self._advance(job, steps[what])
            return True

    def preempted(self, job: int, replica: str) -> bool:
        """True if the machine of that replica is being taken away."""
        with self.lock:
            live = self._live.get(job)
            return live is not None and replica in live.life.preempted

    def poke(self) -> None:
        """Look again at all that waits: the clock was moved."""
        with self.lock:
            self._look_again()

    def release(self) -> None:
        """Let go of the jobs that a fault holds: other faults have taken its place."""
        with self.lock:
            for live in self._live.values():
                live.held_until = 0.0
            self._look_again()

    def drop(self) -> None:
        """End the containers of all jobs and forget these, without a word in the table."""
        with self.lock:
            runners = [live.runner for live in self._live.values() if live.runner is not None]
            self._live.clear()
            self._alarms.clear()
        for runner in runners:
            runner.do("close")
        for runner in runners:
            runner.join(_CLOSE_S)

    def close(self) -> None:
        """End all containers; jobs that run are failed ones when the folder is served again."""
        with self.lock:
            self._closed = True
            self._wake.notify_all()
        self.drop()
        with self.lock:
            gangs, self._gangs = self._gangs, None
        if gangs is not None:
            gangs.close()
        if self._thread.is_alive():
            self._thread.join(_CLOSE_S)

    def _resume(self, row: Row) -> None:
        """Go on with a job of a server before this one."""
        if row.life.phase == "over":
            return
        now = self._clock.now()
        life, acts = lifecycle.abandoned(row.life, now)
        if life.phase != "over":
            life = replace(life, due=now)
        self._table.keep(row.id, life)
        live = _Live(row=row, terms=terms(row), life=life)
        if life.phase != "over":
            self._live[row.id] = live
        self._perform(live, acts)

    def _drive(self) -> None:
        with self.lock:
            while not self._closed:
                try:
                    sleep_s = self._turn()
                except Exception:
                    # A mistake of ours with one job; the others go on.
                    traceback.print_exc()
                    sleep_s = _SLEEP_S
                self._wake.wait(sleep_s)

    def _turn(self) -> float:
        """Do what is due and return how long nothing more is."""
        now = self._clock.now()
        while self._alarms and self._alarms[0].at <= now:
            alarm = heapq.heappop(self._alarms)
            self.happen(alarm.job, alarm.fault.kind, alarm.fault.replica)
        for job in [job for job, live in self._live.items() if live.life.due is not None and live.life.due <= now]:
            self._tick(job)
        times = [live.life.due for live in self._live.values() if live.life.due is not None]
        times += [alarm.at for alarm in self._alarms[:1]]
        if not times:
            return _SLEEP_S
        left_s = max(min(times) - self._clock.now(), 0.0)
        # Time that stands still brings nothing about; who moves it wakes this thread.
        return _SLEEP_S if left_s and self._clock.frozen else min(left_s, _SLEEP_S)

    def _tick(self, job: int) -> None:
        def step(live: _Live, now: float) -> Step:
            return lifecycle.tick(live.life, live.terms, now, self._knobs, self._market(live, now))

        self._advance(job, step)

    def _market(self, live: _Live, now: float) -> Market:
        if live.life.phase == "queued":
            if live.held_until > now:
                return Market(kind="held", until=None if math.isinf(live.held_until) else live.held_until)
            busy = sum(each.busy for each in self._live.values())
            if busy and busy + len(live.terms.replicas) > self._capacity:
                return Market(kind="held")
        elif live.life.phase == "provisioning" and self._faults.job("stockout", live.name):
            return Market(kind="stockout")
        return Market()

    def _advance(self, job: int, step: Callable[[_Live, float], Step]) -> None:
        """Let one thing happen to a job, keep what came of it, and do what follows."""
        with self.lock:
            live = self._live.get(job)
            if live is not None and not self._closed:
                self._step(live, *step(live, self._clock.now()))

    def _step(self, live: _Live, life: Life, acts: list[Act]) -> None:
        job, before = live.row.id, live.life
        if life == before and not acts:
            return
        live.life = life
        self._table.keep(job, life)
        if life.phase == "over":
            del self._live[job]
        if live.busy < len(live.terms.replicas) and before.phase != "queued":
            self._look_again()
        self._perform(live, acts)
        if life.phase == "running" and before.phase == "starting":
            self._arm(live)
        self._wake.notify_all()

    def _perform(self, live: _Live, acts: Iterable[Act]) -> None:
        for act in acts:
            if act.kind == "say":
                self._entries.say(live.row.project, str(live.row.id), act.text, act.severity)
                continue
            if act.kind == "start" and live.runner is None:
                live.runner = self._runner(live)
            if live.runner is not None:
                live.runner.do(act.kind, act.replica)

    def _runner(self, live: _Live) -> Runner:
        job, terms = live.row.id, live.terms

        def leave(codes: dict[str, int], killed: Set[str]) -> None:
            self._advance(job, lambda live, now: lifecycle.exited(live.life, terms, codes, now, killed))

        def report(step: Callable[[Life, float], Step]) -> None:
            self._advance(job, lambda current, now: step(current.life, now))

        def emit(replica: str, stream: str, line: str) -> None:
            self._entries.add_line(live.row.project, str(job), replica, stream, line)
            for fault in self._faults.line(live.name, line):
                self.happen(job, fault.kind, fault.replica)

        def make() -> Gang:
            if self._gangs is None:
                raise RuntimeError("the driver was not started")
            row = live.row
            return self._gangs.make(row.job, job_id=str(job), project=row.project, region=row.region, emit=emit)

        return Runner(
            make,
            self._knobs.grace_s,
            on_start=lambda: report(lambda life, now: lifecycle.began(life, terms, now)),
            on_exit=leave,
            on_stop=lambda: report(lambda life, now: lifecycle.stopped(life, terms, now, self._knobs)),
            on_error=lambda why: report(lambda life, now: lifecycle.broken(life, now, why)),
        )

    def _arm(self, live: _Live) -> None:
        """Set the alarms of what is to happen to a job that begins to run."""
        for fault in self._faults.running(live.name):
            at = self._clock.now() + (fault.after_s or 0.0)
            heapq.heappush(self._alarms, _Alarm(at=at, job=live.row.id, fault=fault))

    def _look_again(self) -> None:
        """Have the jobs that wait without a date look whether they may go on now, the oldest first."""
        now = self._clock.now()
        for live in list(self._live.values()):
            if live.life.phase == "queued" and live.life.due is None and live.held_until <= now:
                self._tick(live.row.id)
                if live.life.phase == "queued":
                    break
        self._wake.notify_all()


def terms(row: Row) -> Terms:
    """Return what a job's specification says about its life."""
    return Terms.of(row.job, region=row.region, logs_url=LOGS_URL.format(project=row.project, job=row.id))
