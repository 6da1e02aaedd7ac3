"""What the jobs of failed keepers add to the records of a schedule, and what the next keeper does about them."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

import pytest
from paper_runs import HOUR, START, World
from support import heard, needs

from sdk.backends.deliveries import Delivery
from sdk.backends.triggers import FailedKeeper
from sdk.schedules import lost_slots
from sdk.schedules.records import Book, ScheduleRecord, SlotRecord, slot_of

needs("cronsim")


def failed(hours: float, job: str = "9", state: str = "FAILED", *, by_hand: bool = False) -> FailedKeeper:
    created = START.timestamp() + hours * HOUR
    return FailedKeeper(
        job=f"projects/1/jobs/{job}", state=state, created=created, by_hand=by_hand, error="It broke.", look="look"
    )


def shown(world: World, *keepers: FailedKeeper) -> list[SlotRecord]:
    return lost_slots.told(Book(world.root).read("each"), world.history(), (), keepers)


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


def test_a_keeper_that_fails_before_it_takes_its_slot_has_a_line_with_the_reason_and_the_next_step(
    world: World,
) -> None:
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


def test_a_slot_that_another_keeper_has_served_is_not_blamed_on_a_duplicate_that_failed(world: World) -> None:
    world.clock.time = START.timestamp()
    world.keeper().serve()
    assert shown(world, failed(0)) == world.history()


def test_an_open_slot_tells_that_its_keeper_is_gone(world: World) -> None:
    world.clock.time = START.timestamp()
    world.keeper("9").step()
    (record,) = shown(world, failed(0))
    assert (record.state, record.reason) == ("RUNNING", "its keeper, the job 9, ended as FAILED. It broke. Next: look")
    assert shown(world, failed(0, "8")) == world.history()


def test_failed_keepers_are_looked_for_as_far_back_as_the_history_goes_and_not_before_the_schedule(
    schedule: ScheduleRecord,
) -> None:
    later = datetime.fromtimestamp(START.timestamp() + 100 * HOUR, timezone.utc)
    assert lost_slots.horizon(schedule, later) == START.timestamp() + 80 * HOUR
    assert lost_slots.horizon(schedule, START) == schedule.created


def keeper_at(world: World, hour: float, job: str = "50") -> None:
    world.clock.time = START.timestamp() + hour * HOUR
    world.keeper(job).serve()


def change(world: World, **rules: Any) -> None:
    record = Book(world.root).read("each")
    Book(world.root).change("each", spec=replace(record.spec, notify=("webhook:HOOK",), **rules), trigger="t/each")


def test_the_next_keeper_records_the_failure_and_sends_the_notice_that_is_late(world: World) -> None:
    change(world)
    keeper_at(world, 0)
    world.service.failures = [failed(2, "7"), failed(1.25, "6", by_hand=True)]
    keeper_at(world, 3)
    assert [(each.state, each.cause) for each in world.history()] == [
        ("SUCCEEDED", "schedule"),
        ("SKIPPED", "schedule"),
        ("FAILED", "manual"),
        ("FAILED", "schedule"),
        ("SUCCEEDED", "schedule"),
    ]
    _, missed, by_hand, lost, _ = world.history()
    assert missed.reason == "missed: no keeper took it"
    assert lost.reason == "its keeper, the job 7, ended as FAILED. It broke. Next: look"
    assert (lost.keeper, lost.ended) == ("projects/1/jobs/7", START.timestamp() + 2 * HOUR)
    assert lost.notes == ("known only to the next keeper, 1 h later",)
    assert [(post["event"], post["slot"]) for post in world.posts] == [("failed", by_hand.slot), ("failed", lost.slot)]
    assert world.posts[1]["text"] == (
        "podlift schedule each: the slot 2027-01-04T02:00:00+00:00 failed (known only to the next keeper, 1 h later): "
        "its keeper, the job 7, ended as FAILED. It broke. Next: look"
    )
    # Each is reported once.
    keeper_at(world, 4)
    assert len(world.posts) == 2
    assert shown(world, *world.service.failures) == world.history()


def test_failures_of_keepers_count_and_pause_the_schedule_before_another_run_starts(world: World) -> None:
    change(world, pause_after_failures=2)
    world.service.failures = [failed(1, "2"), failed(0, "1")]
    keeper_at(world, 2)
    assert [each.state for each in world.history()] == ["FAILED", "FAILED", "SKIPPED"]
    assert world.history()[2].reason == "paused: 2 failures in a row"
    assert world.service.pauses == ["t/each"]
    assert [post["event"] for post in world.posts] == ["failed", "failed", "paused"]
    assert world.runs.submits == []


def test_a_keeper_that_a_user_has_cancelled_is_no_failure(world: World) -> None:
    change(world, pause_after_failures=1)
    world.service.failures = [failed(0, "1", "CANCELLED")]
    keeper_at(world, 1)
    assert [each.state for each in world.history()] == ["CANCELLED", "SUCCEEDED"]
    assert world.posts == []


def test_the_slot_of_a_failed_keeper_that_is_caught_up_tells_why_it_is_late(world: World) -> None:
    change(world, missed="catch_up_last", pause_after_failures=2)
    world.service.failures = [failed(1, "2"), failed(0, "1")]
    keeper_at(world, 2)
    assert [each.state for each in world.history()] == ["FAILED", "SUCCEEDED", "SUCCEEDED"]
    assert world.history()[1].notes == ("its keeper, the job 2, ended as FAILED. It broke. Next: look",)


def test_a_failed_delivery_of_the_slot_that_is_due_and_those_of_a_pause_are_not_reported(world: World) -> None:
    change(world)
    world.service.failures = [failed(0.001, "2"), failed(0, "1")]
    keeper_at(world, 0.01)
    Book(world.root).change("each", paused="by hand")
    world.service.failures.insert(0, failed(1, "3"))
    keeper_at(world, 2)
    assert [each.state for each in world.history()] == ["SUCCEEDED", "SKIPPED", "SKIPPED"]
    assert world.posts == []


def test_a_slot_fires_although_the_service_does_not_tell_which_keepers_have_failed(world: World) -> None:
    heard_now, world.service.failures = heard("schedules"), None
    keeper_at(world, 1)
    assert [each.state for each in world.history()] == ["SKIPPED", "SUCCEEDED"]
    assert "Whether earlier keepers of the schedule each failed is not known: 403" in heard_now
