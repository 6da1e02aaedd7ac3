"""Schedules on a machine with a clock that is set: the records of a server, and the output of `check`."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from paper_runs import HOUR, START, PaperRuns, World
from support import FakeClock, full_only

from sdk import State
from sdk.job.plan import Plan
from sdk.schedules.records import SlotRecord
from sdk.schedules.server import Server

DAY = 24 * HOUR


class SetClock(FakeClock):
    """A clock that somebody sets: it is `ahead` of the truth by so many seconds."""

    ahead = 0.0

    def now(self) -> float:
        return self.time + self.ahead


class TrueClock(FakeClock):
    """The time of a clock that is never set."""

    def __init__(self, clock: SetClock) -> None:
        self._clock = clock

    def now(self) -> float:
        return self._clock.time


@pytest.fixture
def moved(tmp_path: Path, template: Plan) -> World:
    clock = SetClock(START.timestamp() - 60)
    # The duration of runs does not depend on the clock of the machine.
    return World(str(tmp_path), template, clock, PaperRuns(TrueClock(clock)))


def serve(world: World, server: Server, seconds: float, step_s: float = 300.0) -> None:
    """Serve for a span of true time."""
    clock = world.clock
    end = clock.time + seconds
    while clock.time < end:
        due = server.tick()
        clock.time = min(end, clock.time + min(step_s, max(0.5, due - clock.now())))
    server.tick()


def test_slots_that_a_clock_ahead_has_booked_are_no_history_and_fire_at_their_time(moved: World) -> None:
    clock: Any = moved.clock
    moved.add()
    server = moved.server()
    serve(moved, server, HOUR)
    clock.ahead = 5 * HOUR + 600
    serve(moved, server, 30)
    missed = [record for record in moved.history() if record.state == "SKIPPED"]
    why = "missed: no server was there, or its machine slept"
    assert [record.reason for record in missed] == [why] * 6
    assert moved.schedule.problems() == [f"the slot {missed[-1].slot} was {why}"]
    clock.ahead = 0.0
    serve(moved, server, 30)
    assert [each.state for each in moved.schedule.history()] == ["RUNNING", "SUCCEEDED"]
    assert [each.state for each in moved.schedule.history(1)] == ["RUNNING"]
    serve(moved, server, 7 * HOUR)
    assert moved.schedule.problems() == []


def test_a_server_that_starts_after_the_jump_fires_the_slots_that_another_one_booked(moved: World) -> None:
    clock: Any = moved.clock
    moved.add(cron="* * * * *", missed="catch_up_last")
    clock.ahead = 2 * DAY
    serve(moved, moved.server(), 60)
    assert len(moved.history()) > 400
    clock.ahead, before = 0.0, len(moved.runs.submits)
    begin = clock.time
    serve(moved, moved.server(), HOUR, step_s=60)
    assert len(moved.runs.submits) - before == pytest.approx(60, abs=1)
    come = [each for each in moved.history() if begin < each.moment.timestamp() <= clock.now()]
    assert {each.state for each in come} <= {"SUCCEEDED", "RUNNING"}


def test_an_unserved_slot_after_the_jump_is_overdue(moved: World) -> None:
    clock: Any = moved.clock
    moved.add()
    clock.ahead = 2 * DAY
    moved.server().tick()
    clock.ahead, clock.time = 0.0, clock.time + 3 * HOUR
    assert any("is overdue" in problem for problem in moved.schedule.problems())


def test_a_pause_that_a_clock_ahead_has_booked_does_not_hold_after_its_end(moved: World) -> None:
    clock: Any = moved.clock
    moved.add()
    server = moved.server()
    serve(moved, server, HOUR)
    moved.schedule.pause()
    clock.ahead = DAY
    serve(moved, server, 30)
    clock.ahead = 0.0
    moved.schedule.unpause()
    serve(moved, server, 3 * HOUR)
    past = [record for record in moved.history() if record.moment.timestamp() <= clock.now()]
    assert [record.state for record in past].count("SKIPPED") == 0 and len(past) >= 4


def test_a_jump_while_the_server_is_busy_fires_no_slot_that_has_passed(moved: World) -> None:
    clock: Any = moved.clock
    moved.add(overlap="allow")
    server, submit = moved.server(), moved.runs.submit

    def slow(plan: Plan) -> None:
        submit(plan)
        clock.ahead = 5 * DAY

    moved.runs.submit = slow  # type: ignore[method-assign]
    serve(moved, server, 120)
    assert len(moved.runs.submits) <= 2


@dataclass
class Story:
    """The events of a machine, in true time: how far its clock is ahead, and when no server is there."""

    offsets: list[tuple[float, float, float]] = field(default_factory=list)  # begin, end, ahead
    down: list[tuple[float, float]] = field(default_factory=list)
    kills: list[float] = field(default_factory=list)

    def ahead(self, time: float) -> float:
        return next((ahead for begin, end, ahead in self.offsets if begin <= time < end), 0.0)

    def is_up(self, time: float) -> bool:
        return not any(begin <= time < end for begin, end in self.down)

    def moments(self) -> list[float]:
        return sorted([*(m for b, e, _ in self.offsets for m in (b, e)), *(m for span in self.down for m in span)])

    def near(self, time: float) -> bool:
        """Return whether something else than an ordinary minute surrounds a moment."""
        spans = [*((begin, end) for begin, end, _ in self.offsets), *self.down, *((kill, kill) for kill in self.kills)]
        return any(begin - 120 <= time <= end + 1000 for begin, end in spans)


def story(seed: int, begin: float, days: int) -> Story:
    """Return a few things each day that do not overlap each other."""
    rng, told = random.Random(seed), Story()
    for day in range(days):
        base = begin + day * DAY
        kinds = ["forward", "back", "behind", "down", "kill"]
        rng.shuffle(kinds)
        for part, kind in enumerate(kinds):
            at = base + part * DAY / 5 + rng.uniform(600, 5000)
            if kind == "forward":
                told.offsets.append((at, at + rng.uniform(20, 900), rng.uniform(HOUR, 10 * DAY)))
            elif kind == "back":
                told.offsets.append((at, at + rng.uniform(20, 900), -rng.uniform(60, DAY)))
            elif kind == "behind":
                told.offsets.append((at, at + 2 * HOUR, -rng.uniform(2 * HOUR, 3 * HOUR)))
            elif kind == "down":
                told.down.append((at, at + rng.uniform(60, 2 * HOUR)))
            else:
                told.kills.append(at)
    return told


def _steps(told: Story, begin: float, end: float) -> Iterator[float]:
    """Yield the moments at which a server that polls looks."""
    marks = {*told.kills, *(m + late for m in told.moments() for late in (-1.0, 0.0, 5.0))}
    time = begin
    while time < end:
        yield time
        slot = (time // 1800 + 1) * 1800
        time = min([each for each in (*marks, slot, slot + 1) if each > time] + [time + 600])


@pytest.mark.parametrize("seed", [0, *map(full_only, range(1, 4))])
def test_each_slot_fires_once_or_is_booked_as_missed(moved: World, seed: int) -> None:
    world, clock = moved, moved.clock
    # The clocks of Berlin change on the second day.
    begin = clock.time = datetime(2027, 3, 27, 0, 10, tzinfo=timezone.utc).timestamp()
    record = world.add(cron="*/30 * * * *", time_zone="Europe/Berlin", overlap="allow")
    told, server, kills = story(seed, begin, 3), world.server(), 0
    for clock.time in _steps(told, begin, begin + 3 * DAY):
        clock.ahead = told.ahead(clock.time)
        if not told.is_up(clock.time):
            server = world.server()
            continue
        world.runs.killed = any(kill <= clock.time < kill + 1800 for kill in told.kills[kills : kills + 1])
        try:
            server.tick()
        except KeyboardInterrupt:
            server, kills = world.server(), kills + 1
    come = datetime.fromtimestamp(clock.time - 60, timezone.utc)
    slots = list(record.spec.slots.between(datetime.fromtimestamp(begin + 1, timezone.utc), come))
    assert len(slots) >= 140 and kills
    _check(world, told, [slot.timestamp() for slot in slots])


def _check(world: World, told: Story, slots: list[float]) -> None:
    found: dict[float, list[SlotRecord]] = {}
    for each in world.history():
        found.setdefault(each.moment.timestamp(), []).append(each)
    counts = {run: world.runs.submits.count(run) for run in world.runs.submits}
    assert set(counts.values()) == {1}
    for slot in slots:
        (record,) = found[slot]
        fired = record.run in counts
        assert fired != (record.state == "SKIPPED"), record
        if not told.near(slot):
            assert fired and record.state in (State.SUCCEEDED.value, "RUNNING"), record
        if not fired:
            spans = [*told.down, *((begin, end) for begin, end, _ in told.offsets)]
            assert any(begin - 60 <= slot <= end + 60 for begin, end in spans), record
