"""Rules of schedules that need neither a run nor a service, and what jobs of failed keepers add to the records of slots."""

from __future__ import annotations

import base64
import zoneinfo
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from paper_runs import HOUR, START, World

from sdk.backends import keeper_main
from sdk.backends.deliveries import Delivery
from sdk.backends.triggers import FailedKeeper, Trigger
from sdk.errors import CorruptRunError
from sdk.process import spawn
from sdk.records import spending
from sdk.schedules import lost_slots, slots, triggered
from sdk.schedules.records import Book, SlotRecord, slot_of
from sdk.schedules.runs import KeptRuns
from sdk.schedules.triggered import TriggerState
from sdk.status import State

BELL = Trigger(name="each", cron="", time_zone="", paused=False, description="", settings={})


@pytest.mark.parametrize(
    ("seen", "paused", "fires"),
    [
        (None, "", True),
        (None, "by hand", False),
        (TriggerState(service="x", sync=triggered.IN_SYNC, trigger=BELL), "", True),
        (TriggerState(service="x", sync=triggered.IN_SYNC, trigger=BELL), "by hand", False),
        (TriggerState(service="x", sync=triggered.IN_SYNC, trigger=replace(BELL, paused=True)), "", False),
        (TriggerState(service="x", sync=triggered.IN_SYNC, trigger=replace(BELL, broken="why")), "", False),
        (TriggerState(service="x", sync=triggered.MISSING), "", False),
        (TriggerState(service="x", sync=triggered.UNKNOWN), "", True),
    ],
)
def test_a_schedule_fires_unless_it_or_its_trigger_is_stopped(world: World, seen, paused: str, fires: bool) -> None:
    assert triggered.fires(replace(world.add(), paused=paused), seen) is fires


@pytest.mark.parametrize(
    ("fields", "problems"),
    [
        ({"sync": triggered.IN_SYNC, "trigger": BELL}, []),
        (
            {"sync": triggered.IN_SYNC, "trigger": replace(BELL, status="403")},
            ["The tower could not deliver the last time: 403"],
        ),
        (
            {"sync": triggered.MISSING},
            ["The tower has no trigger for it: it does not fire. Next: podlift schedule create again"],
        ),
        (
            {"sync": triggered.CHANGED, "trigger": replace(BELL, name="towers/one/jobs/each"), "why": "it is new"},
            ["each was changed in The tower: it is new. Next: podlift schedule create again"],
        ),
        ({"sync": triggered.UNKNOWN, "why": "no answer"}, ["The tower cannot be asked: no answer"]),
    ],
)
def test_each_problem_of_a_trigger_is_told_and_one_in_sync_has_none(fields: Any, problems: list[str]) -> None:
    assert TriggerState(service="The tower", **fields).problems == problems


@pytest.mark.parametrize("amounts", [{"a": -0.5}, {"a": float("nan")}, {"a": "x"}, []], ids=str)
def test_bookings_of_a_month_that_are_no_amounts_are_damaged(world: World, amounts: Any) -> None:
    record, book = world.add(), Book(world.root)
    assert book.put_bookings(record, "2027-01", {"a": 0.0}, None)
    known, generation = book.bookings(record, "2027-01")
    assert known == {"a": 0.0}
    assert book.put_bookings(record, "2027-01", amounts, generation)
    with pytest.raises(CorruptRunError, match="is damaged"):
        book.bookings(record, "2027-01")


def test_a_dead_servers_slot_is_taken_over_at_once_and_a_living_ones_is_not(world: World, monkeypatch) -> None:
    world.add()
    world.killed(lambda: world.keeper("1", hours=0).step())
    [taken] = world.history()
    asked: list[str] = []
    for alive, state in ((True, "TAKEN"), (False, "RUNNING")):
        monkeypatch.setattr(spawn, "same_machine", lambda identity: True)
        monkeypatch.setattr(spawn, "alive", lambda identity, alive=alive: asked.append(identity) or alive)
        world.keeper("2", hours=0, seconds=5).step()
        assert world.history()[0].state == state
    assert {*asked} == {taken.holder.partition(" ")[0]}


def test_a_removed_run_counts_with_its_booked_cost(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spending, "most_usd", lambda plan: 4.0)
    world.add(takes_s=3 * HOUR, max_cost_usd_per_month=100.0)
    keeper = world.keeper("1", hours=0)
    keeper.step()
    world.runs.ends.clear()
    keeper.serve()
    [record] = world.history()
    assert (record.state, record.cost_usd) == (State.LOST.value, 4.0)


def test_a_keeper_leaves_its_runs_alone_and_knows_the_time_zones_that_it_was_given(
    tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed, paths, runs = [], zoneinfo.TZPATH, KeptRuns(world.clock)

    def following():
        try:
            yield
        finally:
            closed.append(True)

    for url in ("a", "b"):
        runs._following[url] = following()
        next(runs._following[url])
    runs.close()
    assert closed == [True, True]
    data = (Path(zoneinfo.TZPATH[0]) / "Europe/Berlin").read_bytes() if zoneinfo.TZPATH else b"TZif"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(keeper_main.logs, "start", lambda **more: None)
    spec = {
        "keeps": "sdk.schedules.kept_slot:of_container", "schedule": "each", "id": "each", "root": world.root,
        "keep_for_s": HOUR, "cron": "0 * * * *", "time_zone": "UTC", "zone": {"Mine/Berlin": base64.b64encode(data).decode()},
    }  # fmt: skip
    try:
        # There is no such schedule.
        assert keeper_main.main(spec, home=str(tmp_path / "home")) == 2
        # The error of a run goes on: "bad input" would say that nothing was started.
        assert keeper_main.main({**spec, "run": "gs://b/runs/r"}, home=str(tmp_path / "home")) == 3
        assert (tmp_path / "home/zoneinfo/Mine/Berlin").read_bytes() == data
        assert str(tmp_path / "home/zoneinfo") in zoneinfo.TZPATH
        # The package tzdata has neither of these.
        assert (slots.zone_data("Mine/Berlin"), slots.zone_data("Not/There")) == (data, b"")
    finally:
        zoneinfo.reset_tzpath(paths)


def test_a_schedule_with_an_interrupted_removal_stays_and_fires_no_more(world: World, monkeypatch) -> None:
    book, record = Book(world.root), world.add()

    def killed(key: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(book.store, "delete", killed)
    with pytest.raises(KeyboardInterrupt):
        book.remove(record)
    assert Book(world.root).read("each").paused
    assert Book(world.root).absent(["specs/each.json", "plans/none"]) == ["plans/none"]


def failed(hours: float, job: str = "9", state: str = "FAILED", *, by_hand: bool = False) -> FailedKeeper:
    created = START.timestamp() + hours * HOUR
    return FailedKeeper(
        job=f"projects/1/jobs/{job}", state=state, created=created, by_hand=by_hand, error="It broke.", look="look"
    )


def shown(world: World, *keepers: FailedKeeper) -> list[SlotRecord]:
    return lost_slots.complete(Book(world.root).read("each"), world.history(), (), keepers)


@pytest.fixture
def lost(world: World) -> World:
    world.add()
    return world


def test_the_slot_that_a_service_names_counts_however_late_its_keeper_was_created(lost: World) -> None:
    schedule, hour = Book(lost.root).read("each"), START.timestamp() + HOUR
    late = Delivery(job="projects/1/customJobs/9", created=hour + 2.5 * HOUR, slot=hour)
    assert slot_of(schedule, late)[1].timestamp() == hour
    assert slot_of(schedule, replace(late, slot=None))[1].timestamp() == hour + 2 * HOUR
    by_hand = slot_of(schedule, replace(late, slot=None, by_hand=True))
    assert by_hand[0].endswith("-manual-9") and by_hand[1].timestamp() == late.created


def test_a_keeper_that_fails_without_its_slot_is_listed_with_reason_and_next_step(lost: World) -> None:
    (line,) = shown(lost, failed(0.001), failed(0.0, "8"))
    assert (line.slot, line.state, line.run) == ("2027-01-04T00:00:00+00:00", "FAILED", "")
    assert line.reason == "its keeper, the job 9, ended as FAILED. It broke. Next: look"
    assert [each.state for each in shown(lost, failed(0, state="CANCELLED"))] == ["CANCELLED"]
    (by_hand,) = shown(lost, failed(0.5, by_hand=True))
    assert (by_hand.cause, by_hand.slot) == ("manual", "2027-01-04T00:30:00+00:00")


def test_the_missed_slot_that_the_next_keeper_records_keeps_the_reason(lost: World) -> None:
    lost.clock.time = START.timestamp() + HOUR
    lost.keeper().serve()
    first, second = shown(lost, failed(0))
    assert (first.state, first.reason[:40]) == ("SKIPPED", "missed: its keeper, the job 9, ended as ")
    assert second.state == "SUCCEEDED"


def test_a_failed_duplicate_of_a_keeper_does_not_fail_a_slot_that_another_served(lost: World) -> None:
    lost.clock.time = START.timestamp()
    lost.keeper().serve()
    assert shown(lost, failed(0)) == lost.history()


def test_an_open_slot_tells_that_its_keeper_is_gone(lost: World) -> None:
    lost.clock.time = START.timestamp()
    lost.keeper("9").step()
    (record,) = shown(lost, failed(0))
    assert (record.state, record.reason) == ("RUNNING", "its keeper, the job 9, ended as FAILED. It broke. Next: look")
    assert shown(lost, failed(0, "8")) == lost.history()


def test_failed_keepers_are_searched_within_the_history_and_not_before_the_schedule(lost: World) -> None:
    schedule, later = Book(lost.root).read("each"), datetime.fromtimestamp(START.timestamp() + 100 * HOUR, timezone.utc)
    assert lost_slots.horizon(schedule, later) == START.timestamp() + 80 * HOUR
    assert lost_slots.horizon(schedule, START) == schedule.created
