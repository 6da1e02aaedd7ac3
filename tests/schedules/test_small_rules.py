"""Rules of schedules that need neither a run nor a service."""

from __future__ import annotations

import base64
import zoneinfo
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from paper_runs import HOUR, World

from sdk.backends import keeper_main
from sdk.backends.triggers import Trigger
from sdk.errors import CorruptRunError
from sdk.process import spawn
from sdk.records import spending
from sdk.schedules import triggered
from sdk.schedules.records import Book
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
    world.runs.takes_s = 3 * HOUR
    world.add(max_cost_usd_per_month=100.0)
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
