"""Deliveries by `podlift schedule run --due`, with the rules of any other delivery; deliveries and a history in a bucket."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta

import pytest
from paper_runs import HOUR, START, PaperRuns, World, at
from support import FakeClock, input_error

from sdk import InputError, State
from sdk.job.plan import Plan
from sdk.schedules.records import Book, SlotRecord, key_of
from sdk.storage.parallel import in_parallel
from sdk.testing.gcs import GcsServer
from sdk.upkeep import remove

MINUTE = 60.0


@pytest.mark.parametrize(
    ("seconds", "notes"), [(4.0, ()), (50 * MINUTE, ("delivered 50 min after its slot: late, or by hand",))]
)
def test_a_command_delivers_the_nearest_slot_and_follows_its_run(world, seconds: float, notes: tuple[str, ...]) -> None:
    world.add()
    done = world.deliver(0, seconds)
    (record,) = world.history()
    assert (record.slot, record.state, record.notes) == ("2027-01-04T00:00:00+00:00", "SUCCEEDED", notes)
    assert (done.exit_code, done.record) == (0, record)
    assert world.clock.now() >= START.timestamp() + seconds + world.runs.takes_s


def test_a_second_command_at_the_same_slot_starts_nothing_and_exits_with_0(world: World) -> None:
    world.add()
    world.deliver(0)
    again = world.deliver(0, 5 * MINUTE)
    assert again.exit_code == 0 and "was delivered before: its run each-20270104t000000-" in again.text
    (record,) = world.history()
    assert len(world.runs.submits) == 1 and record.notes[0].startswith("delivered again at 2027-01-04T00:05:00")


def test_concurrent_commands_servers_and_keepers_start_one_run_of_a_slot(world: World) -> None:
    world.add()
    at(world, 0)
    triggers = [(world.deliver, world.server().tick, world.keeper(str(number)).step) for number in range(6)]
    with ThreadPoolExecutor(18) as pool:
        for each in [pool.submit(trigger) for several in triggers for trigger in several]:
            each.result()
    assert (len(world.runs.submits), len(world.history())) == (1, 1)


def test_a_line_that_fires_at_hours_without_a_slot_does_nothing_then(world: World) -> None:
    """As in a crontab of a cron without zones: 23 of the 24 firings of a day are at other hours."""
    world.add(cron="30 3 * * *", time_zone="Europe/Berlin")
    done = [world.deliver(hour, 30 * MINUTE, within_s=59 * MINUTE) for hour in range(48)]
    # 03:30 in Berlin is 02:30 UTC.
    assert [hour for hour, each in enumerate(done) if each.record] == [2, 26]
    slots = "the last slot was 2027-01-03T03:30:00+01:00, the next one is 2027-01-04T03:30:00+01:00"
    assert done[0].text == f"nothing is due: {slots}"
    assert {each.exit_code for each in done} == {0}
    assert [record.state for record in world.history()] == ["SUCCEEDED"] * 2


def test_a_slot_is_delivered_by_its_name_also_later(world: World) -> None:
    world.add()
    world.deliver(2, slot=datetime.fromisoformat("2027-01-04T02:00:00+01:00"))
    (record,) = (each for each in world.history() if each.state == "SUCCEEDED")
    assert record.slot == "2027-01-04T01:00:00+00:00"
    assert record.notes == ("delivered 1 h after its slot: late, or by hand",)


@pytest.mark.parametrize(
    ("hours", "sentence"),
    [
        (0.5, "Nearest: 2027-01-04T00:00:00+00:00 and 2027-01-04T01:00:00+00:00."),
        (3, "it has not come yet"),
        (-2, "the slots of this schedule began at 2027-01-03T23:59:00+00:00"),
    ],
)
def test_a_slot_that_is_none_or_not_of_this_schedule_is_refused(world: World, hours: float, sentence: str) -> None:
    world.add()
    at(world, 1)
    with input_error("--slot", sentence):
        world.deliver(slot=START + timedelta(hours=hours))
    assert world.history() == []


@pytest.mark.parametrize(
    ("order", "said"),
    [({"id": "a/b c"}, "--id: letters"), ({"detach": True}, "--detach: no process would follow a run of local")],
)
def test_a_name_of_a_delivery_must_be_one_and_a_local_run_has_no_keeper_to_detach_to(world, order, said) -> None:
    world.add()
    with pytest.raises(InputError, match=said):
        world.deliver(**order)
    assert world.schedule.history() == []


def test_a_delivery_that_was_interrupted_goes_on_with_its_slot_under_its_name(world: World) -> None:
    world.add(takes_s=2.2 * HOUR, outcome=State.LOST)
    world.killed(lambda: world.deliver(0, id="weekly-29"))
    # Its machine comes back when later slots are past.
    at(world, 2, 10 * MINUTE)
    world.runs.takes_s = 60.0
    done = world.deliver(id="weekly-29")
    assert done.record is not None and done.record.slot == "2027-01-04T00:00:00+00:00"
    # It resumes a run that was lost, as only the delivery of its slot does.
    assert (done.record.state, done.exit_code) == ("SUCCEEDED", 0)
    assert world.runs.resumed == [done.record.run]
    assert world.deliver(id="weekly-29").record == done.record
    assert len(world.runs.submits) == 1


def test_a_run_that_fails_gives_its_exit_code_and_a_skipped_slot_0(world: World) -> None:
    world.add(outcome=State.FAILED, notify=("webhook:HOOK",), pause_after_failures=2)
    assert [world.deliver(hour).exit_code for hour in range(3)] == [1, 1, 0]
    assert [record.state for record in world.history()] == ["FAILED", "FAILED", "SKIPPED"]
    assert [post["event"] for post in world.posts] == ["failed", "failed", "paused"]


def test_a_delivery_made_before_a_change_of_the_expression_serves_its_original_slot(world: World) -> None:
    """A keeper takes minutes to get a machine; its launch spec has the expression by which it was delivered."""
    record = world.add(cron="0 * * * *")
    at(world, 1, 1.0)
    keeper = world.keeper("7")
    spec = {"cron": "0 * * * *", "time_zone": "UTC"}
    # Changed to half past, of which the nearest slot would be 00:30.
    Book(world.root).change("each", spec=world.spec(record, cron="30 * * * *"), since=world.clock.now())
    keeper.keep(spec)
    (served,) = world.history()
    assert (served.slot, served.state) == ("2027-01-04T01:00:00+00:00", "SUCCEEDED")


RACING, DAYS = 8, 100


@pytest.fixture
def there(mine, template: Plan) -> World:
    clock = FakeClock(START.timestamp() - 60)
    return World("gs://mine/podlift", template, clock, PaperRuns(clock))


def test_of_8_racing_deliveries_one_run_starts(there: World) -> None:
    there.add()
    there.clock.time = START.timestamp()
    keepers = [there.keeper(str(number)) for number in range(RACING)]
    with ThreadPoolExecutor(RACING) as pool:
        going_on = list(pool.map(lambda keeper: keeper.step(), keepers))
        # Processes that found the slot taken and not yet running look again.
        again = [each for each, more in zip(keepers, going_on, strict=True) if more]
        list(pool.map(lambda keeper: keeper.step(), again))
    assert len(there.runs.submits) == 1
    (record,) = there.history()
    assert record.state == "RUNNING"
    assert len(record.notes) == RACING - 1


def test_a_history_of_a_hundred_slots_is_listed_with_few_requests_and_removed(there, podlift_gcs: GcsServer) -> None:
    record, book = there.add(cron="0 3 * * *"), Book(there.root)
    slots = [*record.spec.slots.between(START, START + timedelta(days=DAYS))]
    made = [SlotRecord(key=key_of(slot), slot=slot.isoformat(), state="SUCCEEDED") for slot in slots]
    assert all(in_parallel(lambda each: book.take(record, each), made))
    there.clock.time = made[-1].moment.timestamp() + 60
    schedule = there.schedule
    assert [each.slot for each in schedule.history(None)] == [each.slot for each in reversed(made)]
    podlift_gcs.forget_requests()
    assert [each.slot for each in schedule.history()] == [each.slot for each in reversed(made[-20:])]
    assert podlift_gcs.requests().total <= 23
    there.schedule.remove()
    assert [blob.name for blob in podlift_gcs.client().list_blobs("mine", prefix="podlift/schedules/")] == []


def test_podlift_remove_keeps_the_code_of_a_schedule_and_of_its_keepers(there, podlift_gcs, monkeypatch) -> None:
    bucket = podlift_gcs.client().bucket("mine")
    record, kept, other = there.add(), "a" * 64, "b" * 64
    for digest in (kept, other):
        for name in (f"runtime/{digest}.tar", f"entrypoints/{digest}.py"):
            bucket.blob(f"podlift/{name}").upload_from_string("x")
    bucket.blob(f"podlift/bundles/{record.bundle}.tar").upload_from_string("x")
    bucket.blob(f"podlift/bundles/{other}.tar").upload_from_string("x")
    spec = f'{{"runtime": {{"sha256": "{kept}"}}, "entrypoint": "{kept}"}}'
    Book(there.root).put_files({"keepers/each/0123.json": spec.encode()})
    for name in ("SETTLED_S", "JOB_SETTLED_S"):
        monkeypatch.setattr(remove.root, name, 0.0)
    found = remove.find(there.root, older_than_s=0.0, keep=0, now=START.timestamp() + 1e9)
    assert sorted(item.name for item in remove.remove(found).items) == [other] * 3
    assert {blob.name for blob in bucket.list_blobs(prefix="podlift/runtime/")} == {f"podlift/runtime/{kept}.tar"}
