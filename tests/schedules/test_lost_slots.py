"""The additions of failed keepers' jobs to the records of a schedule, and their treatment by the next keeper."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone

import pytest
from paper_runs import HOUR, START, World

from sdk.backends.deliveries import Delivery
from sdk.backends.triggers import FailedKeeper
from sdk.schedules import lost_slots
from sdk.schedules.records import Book, ScheduleRecord, SlotRecord, slot_of


def failed(hours: float, job: str = "9", state: str = "FAILED", *, by_hand: bool = False) -> FailedKeeper:
    created = START.timestamp() + hours * HOUR
    return FailedKeeper(
        job=f"projects/1/jobs/{job}", state=state, created=created, by_hand=by_hand, error="It broke.", look="look"
    )


def shown(world: World, *keepers: FailedKeeper) -> list[SlotRecord]:
    return lost_slots.complete(Book(world.root).read("each"), world.history(), (), keepers)


@pytest.fixture(autouse=True)
def schedule(world: World) -> ScheduleRecord:
    return world.add()


def test_the_slot_that_a_service_names_counts_however_late_its_keeper_was_created(world: World) -> None:
    schedule, hour = Book(world.root).read("each"), START.timestamp() + HOUR
    late = Delivery(job="projects/1/customJobs/9", created=hour + 2.5 * HOUR, slot=hour)
    assert slot_of(schedule, late)[1].timestamp() == hour
    assert slot_of(schedule, replace(late, slot=None))[1].timestamp() == hour + 2 * HOUR
    by_hand = slot_of(schedule, replace(late, slot=None, by_hand=True))
    assert by_hand[0].endswith("-manual-9") and by_hand[1].timestamp() == late.created


def test_a_keeper_that_fails_without_its_slot_is_listed_with_reason_and_next_step(world: World) -> None:
    (line,) = shown(world, failed(0.001), failed(0.0, "8"))
    assert (line.slot, line.state, line.run) == ("2027-01-04T00:00:00+00:00", "FAILED", "")
    assert line.reason == "its keeper, the job 9, ended as FAILED. It broke. Next: look"
    assert [each.state for each in shown(world, failed(0, state="CANCELLED"))] == ["CANCELLED"]
    (by_hand,) = shown(world, failed(0.5, by_hand=True))
    assert (by_hand.cause, by_hand.slot) == ("manual", "2027-01-04T00:30:00+00:00")


def test_the_missed_slot_that_the_next_keeper_records_keeps_the_reason(world: World) -> None:
    world.clock.time = START.timestamp() + HOUR
    world.keeper().serve()
    first, second = shown(world, failed(0))
    assert (first.state, first.reason[:40]) == ("SKIPPED", "missed: its keeper, the job 9, ended as ")
    assert second.state == "SUCCEEDED"


def test_a_failed_duplicate_of_a_keeper_does_not_fail_a_slot_that_another_served(world: World) -> None:
    world.clock.time = START.timestamp()
    world.keeper().serve()
    assert shown(world, failed(0)) == world.history()


def test_an_open_slot_tells_that_its_keeper_is_gone(world: World) -> None:
    world.clock.time = START.timestamp()
    world.keeper("9").step()
    (record,) = shown(world, failed(0))
    assert (record.state, record.reason) == ("RUNNING", "its keeper, the job 9, ended as FAILED. It broke. Next: look")
    assert shown(world, failed(0, "8")) == world.history()


def test_failed_keepers_are_searched_within_the_history_and_not_before_the_schedule(schedule: ScheduleRecord) -> None:
    later = datetime.fromtimestamp(START.timestamp() + 100 * HOUR, timezone.utc)
    assert lost_slots.horizon(schedule, later) == START.timestamp() + 80 * HOUR
    assert lost_slots.horizon(schedule, START) == schedule.created
