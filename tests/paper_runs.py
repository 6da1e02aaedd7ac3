"""Schedules under a virtual clock, with runs that only exist on paper: no test waits or starts a process."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from support import FakeClock

from sdk import Reason, RunNotFoundError, State, Status
from sdk.backends import keeper_main
from sdk.backends.deliveries import KEEPER_LEASE_S, Delivery
from sdk.clock import Clock
from sdk.errors import PodliftError
from sdk.hardware import accelerators, pricing
from sdk.hardware.pricing import Price
from sdk.job.plan import Plan
from sdk.schedules.command_delivery import Delivered, deliver
from sdk.schedules.firing import SlotMachine
from sdk.schedules.handle import Schedule
from sdk.schedules.kept_slot import KeptSlot, with_slot
from sdk.schedules.notices import Notice, Notifier
from sdk.schedules.records import Book, ScheduleRecord, ScheduleSpec, SlotRecord
from sdk.schedules.server import Server
from sdk.status import Registered

HOUR = 3600.0
START = datetime(2027, 1, 4, tzinfo=timezone.utc)


class PaperRuns:
    """Runs that take a while on a clock, and end as they are told to."""

    def __init__(self, clock: FakeClock, *, takes_s: float = 60.0) -> None:
        self.clock, self.takes_s = clock, takes_s
        self.plans: dict[str, Plan] = {}
        self.started: dict[str, float] = {}
        self.ends: dict[str, tuple[float, State]] = {}
        self.outcome: Callable[[Plan], State] = lambda plan: State.SUCCEEDED
        self.resumed_outcome = State.SUCCEEDED
        self.submits: list[str] = []
        self.resumed: list[str] = []
        self.killed = False
        self.costs_usd: float | None = None
        self.registered: Registered | None = None

    def submit(self, plan: Plan) -> None:
        if self.killed:
            raise KeyboardInterrupt
        self.submits.append(plan.run_id)
        if plan.run_id not in self.plans:
            self.plans[plan.run_id] = plan
            self.started[plan.run_id] = self.clock.now()
            self.ends[plan.run_id] = self.clock.now() + self.takes_s, self.outcome(plan)

    def state_of(self, url: str) -> tuple[Status, Plan]:
        return self.status(url), self.plans[url.rpartition("/")[2]]

    def status(self, url: str) -> Status:
        run = url.rpartition("/")[2]
        if run not in self.ends:
            raise RunNotFoundError(f"No such run: {run}.")
        end, state = self.ends[run]
        if self.clock.now() < end:
            return Status(state=State.RUNNING, reason=Reason.TRAINING)
        reason = Reason.DONE if state is State.SUCCEEDED else Reason.USER_ERROR
        return Status(state=state, reason=reason, since=end, spent_usd=self.costs_usd, registered=self.registered)

    def cancel(self, url: str) -> None:
        self.ends[url.rpartition("/")[2]] = self.clock.now() + 10, State.CANCELLED

    def resume(self, url: str) -> None:
        run = url.rpartition("/")[2]
        self.resumed.append(run)
        self.ends[run] = self.clock.now() + self.takes_s, self.resumed_outcome

    def close(self) -> None:
        pass


class AtOnce(Notifier):
    """Sends in the caller's thread: a sent post has arrived."""

    def send(self, targets: Sequence[str], notice: Notice) -> None:
        for target in targets:
            self.deliver(target, notice)


class PaperService:
    """The service of the triggers; `pauses` are the triggers that it has paused."""

    def __init__(self) -> None:
        self.pauses: list[str] = []
        self.may_pause = True
        self.costs_usd, self.lives_s = 0.0, 2 * HOUR

    def keeper_price(self, plan: Plan, overlap: str) -> Price:
        hour = pricing.price(pricing.Rental(pools=accelerators.pools("cpu"), timeout_s=self.lives_s))
        return replace(hour, own=self.costs_usd, at_least=self.costs_usd)

    def pause(self, trigger: str, clock: object) -> None:
        if not self.may_pause:
            raise PodliftError("403")
        self.pauses.append(trigger)


@dataclass
class World:
    """A root with schedules of one small program, a clock, and servers."""

    root: str
    template: Plan
    clock: FakeClock
    runs: PaperRuns
    posts: list[dict[str, str]] = field(default_factory=list)
    service: PaperService = field(default_factory=PaperService)

    def add(self, *, takes_s: float | None = None, outcome: State | None = None, **fields: object) -> ScheduleRecord:
        """Add a schedule of runs that take that long and end like that."""
        self.runs.takes_s = takes_s or self.runs.takes_s
        if outcome is not None:
            self.runs.outcome = lambda plan: outcome
        spec = ScheduleSpec(**{"name": "each", "cron": "0 * * * *", "folder": self.root, **fields})  # type: ignore[arg-type]
        book, plan = Book(self.root), replace(self.template, root=self.root)
        now = self.clock.now()
        key = book.put_plan(spec.name, plan)
        record = ScheduleRecord(id=spec.name, spec=spec, bundle=plan.code.digest, plan=key, created=now, since=now)
        assert book.add(record)
        return record

    def spec(self, record: ScheduleRecord, **fields: object) -> ScheduleSpec:
        """Return the specification of a schedule, with other rules."""
        return replace(record.spec, **fields)  # type: ignore[arg-type]

    def server(self) -> Server:
        return Server(self.root, self.clock, self.runs, self.notifier())

    def notifier(self) -> Notifier:
        return AtOnce(self.clock, {"HOOK": "https://hooks.invalid/secret"}, self._post)

    def machine(self) -> SlotMachine:
        """Return the slot machine of another process."""

        def pause(schedule: ScheduleRecord, clock: Clock) -> None:
            self.service.pause(schedule.trigger, clock)

        return SlotMachine(Book(self.root), self.clock, self.runs, self.notifier(), pause)

    def fire(self, name: str) -> SlotRecord:
        """Fire by hand, as a user of this machine does."""
        delivery = Delivery(created=self.clock.now(), by_hand=True)
        return self.machine().fire(Book(self.root).read(name), delivery)

    def killed(self, deliver: Callable[[], object]) -> None:
        """Deliver in a process that is killed before it submits the run."""
        self.runs.killed = True
        with pytest.raises(KeyboardInterrupt):
            deliver()
        self.runs.killed = False

    def deliver(self, hours: float | None = None, seconds: float = 0.0, **order: Any) -> Delivered:
        """Deliver by a command, now or so long after the first slot."""
        if hours is not None:
            at(self, hours, seconds)
        return deliver("each", self.root, self.clock, runs=self.runs, notifier=self.notifier(), **order)

    @property
    def schedule(self) -> Schedule:
        return Schedule("each", root=self.root, clock=self.clock)

    def keeper(
        self, job: str = "1", *, hours: float | None = None, seconds: float = 0.0, by_hand: bool = False
    ) -> PaperKeeper:
        """Return the keeper of a delivery that the service created now, or so long after the first slot."""
        if hours is not None:
            at(self, hours, seconds)
        return PaperKeeper(self, job, by_hand=by_hand)

    def _post(self, url: str, data: bytes) -> None:
        self.posts.append(json.loads(data))

    def advance(self, server: Server, hours: float) -> None:
        """Serve for a while, as `serve` does."""
        end = self.clock.now() + hours * HOUR
        while self.clock.now() < end:
            due = server.tick()
            # Nothing happens between these moments.
            moments = [due, end, *(moment for moment, _ in self.runs.ends.values() if moment > self.clock.now())]
            self.clock.time = max(self.clock.now() + 0.5, min(moments))
        server.tick()

    def history(self, name: str = "each") -> list[SlotRecord]:
        book = Book(self.root)
        record = book.read(name)
        return [book.slot(record, key) for key in book.keys(record)]

    def shown(self) -> list[str]:
        """Each slot's hour and what became of it."""
        found = []
        for record in self.history():
            start = self.runs.started.get(record.run)
            hour = (record.moment - START) / timedelta(hours=1)
            at = "" if start is None else f" at {(start - START.timestamp()) / HOUR:g}"
            found.append(f"{hour:g} {record.state}{at}")
        return found


def at(world: World, hours: float, seconds: float = 0.0) -> None:
    """Move the clock to this time after the first slot."""
    world.clock.time = START.timestamp() + hours * HOUR + seconds


class PaperKeeper:
    """A keeper in its container; a restarted container runs another one of the same job."""

    def __init__(self, world: World, job: str, *, by_hand: bool) -> None:
        self._world, self._machine = world, world.machine()
        self._kept: dict[str, KeptSlot] = {}
        self.delivery = Delivery(
            job=f"projects/1/jobs/{job}",
            created=world.clock.now(),
            by_hand=by_hand,
            lease_s=KEEPER_LEASE_S,
            price=lambda: world.service.keeper_price(world.template, ""),
        )

    def step(self, name: str = "each", schedule: str = "") -> bool:
        return self.kept(name, schedule).step()

    def kept(self, name: str = "each", schedule: str = "") -> KeptSlot:
        if name not in self._kept:
            self._kept[name] = KeptSlot(self._machine, name, schedule or name, lambda _: self.delivery)
        return self._kept[name]

    def keep(self, spec: Mapping[str, str]) -> None:
        """Serve the delivery by the program of the container."""
        delivery = with_slot(self.delivery, spec)
        kept = KeptSlot(self._machine, "each", "each", lambda _: delivery)
        keeper_main.keep(kept, HOUR, self._world.clock)

    def serve(self, name: str = "each", hours: float = 1000.0) -> None:
        """Serve the delivery as its container does, on the virtual clock."""
        end = self._world.clock.now() + hours * HOUR
        while self.step(name):
            moments = [moment for moment, _ in self._world.runs.ends.values() if moment > self._world.clock.now()]
            self._world.clock.time = min([*moments, self._world.clock.now() + 60])
            if self._world.clock.now() > end:
                self.kept(name).give_up()
                return
