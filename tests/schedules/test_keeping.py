"""A keeper with a delivery, under a virtual clock and with runs that only exist on paper."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta, timezone
from pathlib import Path
from threading import Barrier, local
from types import SimpleNamespace
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from paper_runs import HOUR, START, World, at
from support import LIMIT_S, Later, full_only

import sdk
from sdk import InputError, State
from sdk.backends import keeper_main
from sdk.backends.deliveries import KEEPER_LEASE_S as LEASE_S
from sdk.backends.deliveries import Delivery
from sdk.errors import CorruptRunError, StoreUnavailableError
from sdk.job.plan import Plan
from sdk.records import spending
from sdk.schedules import handle
from sdk.schedules.kept_slot import KeptSlot
from sdk.schedules.records import Book, ScheduleRecord
from sdk.schedules.simulation import Simulation

CronSim = Later("cronsim", "CronSim")
DAYS = 24 * HOUR


@pytest.fixture
def firing_costs(monkeypatch: pytest.MonkeyPatch) -> Callable[[float | None], None]:
    """Set the most that a firing can cost: `firing_costs(4.0)`."""
    return lambda most_usd: monkeypatch.setattr(spending, "most_usd", lambda plan: most_usd)


def test_a_slot_that_is_delivered_again_starts_nothing_and_its_record_says_so(world: World) -> None:
    world.add()
    first, second = world.keeper("11", hours=0), world.keeper("22")
    assert first.step()
    # While the run goes on, and after its end.
    assert not second.step()
    first.serve()
    at(world, 0, 3000)
    forced = world.keeper("33")
    for _ in range(2):
        assert not forced.step()
    (record,) = world.history()
    assert record.state == "SUCCEEDED"
    assert record.notes == (
        "delivered again at 2027-01-04T00:00:00+00:00, by the job 22",
        "delivered again at 2027-01-04T00:50:00+00:00, 50 min after its slot: late, or by hand, by the job 33",
    )
    assert len(world.runs.submits) == 1


@pytest.mark.parametrize(
    ("overlap", "expected"),
    [
        ("skip", ["0 SUCCEEDED at 0", "1 SKIPPED"]),
        ("allow", ["0 SUCCEEDED at 0", "1 SUCCEEDED at 1"]),
        ("queue", ["0 SUCCEEDED at 0", "1 SUCCEEDED at 1.5"]),
        ("replace", ["0 CANCELLED at 0", "1 SUCCEEDED at 1.00278"]),
    ],
)
def test_a_delivery_while_an_earlier_run_goes_on(world: World, overlap: str, expected: list[str]) -> None:
    world.add(takes_s=1.5 * HOUR, overlap=overlap)
    first = world.keeper("1", hours=0)
    assert first.step()
    second = world.keeper("2", hours=1)
    second.serve()
    first.serve()
    assert world.shown() == expected


def test_a_keeper_that_waits_beyond_its_time_skips_its_slot(world: World) -> None:
    world.add(takes_s=100 * HOUR, overlap="queue")
    world.keeper("1", hours=0).step()
    world.keeper("2", hours=1).serve(hours=2)
    assert world.shown() == ["0 RUNNING at 0", "1 SKIPPED"]
    assert world.history()[1].reason == "overlap: the keeper's time was over before the earlier run ended"


def test_a_slot_of_a_keeper_that_died_while_it_waited_does_not_block_later_ones(world: World) -> None:
    world.add(takes_s=1.5 * HOUR, overlap="queue")
    world.keeper("1", hours=0).step()
    waiting = world.keeper("2", hours=1)
    assert waiting.step()
    # As long as it is there, it renews its lease.
    at(world, 1, 50)
    assert waiting.step()
    assert not world.keeper("3", by_hand=True, hours=1, seconds=100).step()
    assert [record.state for record in world.history()][:2] == ["RUNNING", "WAITING"]
    world.keeper("4", hours=2).serve()
    assert [record.state for record in world.history()] == ["SUCCEEDED", "SKIPPED", "SKIPPED", "SUCCEEDED"]
    assert world.history()[1].reason == "missed: its keeper ended while it waited"
    assert not waiting.step()
    assert world.history()[1].notes == ()


def test_a_run_that_an_earlier_keeper_has_lost_is_not_resumed_by_a_later_one(world: World) -> None:
    world.runs.outcome = lambda plan: State.LOST if plan.run_id.startswith("each-20270104t000000") else State.SUCCEEDED
    world.add()
    world.keeper("1", hours=0).step()
    world.keeper("2", hours=1).serve()
    assert world.runs.resumed == []
    assert [record.state for record in world.history()] == ["LOST", "SUCCEEDED"]


def test_a_second_delivery_takes_over_from_a_dead_keeper_within_two_minutes(world: World, tmp_path: Path) -> None:
    data = tmp_path / "rows.csv"
    data.write_text("a\n")
    world.add(inputs={"rows": str(data)}, when=("min_new_examples(rows, 1)",))
    world.killed(lambda: world.keeper("1", hours=0).step())
    (taken,) = world.history()
    # The first keeper has decided, and may have submitted the run.
    data.write_text("")
    second = world.keeper("2")
    while world.history()[0].state == "TAKEN":
        assert second.step()
        world.clock.time += 5
    assert world.clock.now() - START.timestamp() <= LEASE_S + 10 <= 120
    (record,) = world.history()
    assert (record.state, record.keeper) == ("RUNNING", "projects/1/jobs/2")
    assert record.run == taken.run
    second.serve()
    assert world.shown() == ["0 SUCCEEDED at 0.0180556"]


def test_a_slot_that_a_dead_keeper_has_left_does_not_fire_a_week_later(world: World) -> None:
    world.add()
    world.killed(lambda: world.keeper("1", hours=0).step())
    world.keeper("2", hours=1).serve()
    assert world.shown() == ["0 SKIPPED", "1 SUCCEEDED at 1"]
    assert world.history()[0].reason == "missed: its keeper ended before it started the run"


@pytest.mark.parametrize("delayed", ["cancel", "submit"])
def test_an_outage_delays_the_submit_of_a_run_and_the_cancel_of_its_predecessor(world, monkeypatch, delayed) -> None:
    world.add(takes_s=100 * HOUR, overlap="replace")
    world.keeper("1", hours=0).step()
    second = world.keeper("2", hours=1)

    def fail(about: object) -> None:
        raise StoreUnavailableError("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(world.runs, delayed, fail)
        if delayed == "submit":
            # The cancellation is asked for, and takes its time.
            assert second.step()
            world.clock.time += 60
        for _ in range(2):
            with pytest.raises(StoreUnavailableError):
                second.step()
    second.serve(hours=0.5)
    assert [record.state for record in world.history()] == ["CANCELLED", "RUNNING"]


def test_a_keeper_that_begins_during_an_outage_waits_for_the_bucket(world: World, monkeypatch) -> None:
    world.add()
    book, read, failures = Book(world.root), Book.read, iter([StoreUnavailableError("no answer")] * 3)

    def failing(self: Book, name: str) -> ScheduleRecord:
        for error in failures:
            raise error
        return read(self, name)

    monkeypatch.setattr(Book, "read", failing)
    plans, keeper = list[Plan](), world.keeper()

    def deliver(schedule: ScheduleRecord) -> Delivery:
        plans.append(book.plan(schedule))
        return keeper.delivery

    keeper_main.keep(KeptSlot(world.machine(), "each", "each", deliver), HOUR, world.clock)
    assert plans == [book.plan(book.read("each"))]


def test_a_firing_by_hand_is_a_separate_slot_also_while_the_schedule_is_paused(world: World) -> None:
    world.add()
    world.schedule.pause()
    world.keeper("77", by_hand=True, hours=0.5, seconds=0.25).serve()
    (record,) = world.history()
    assert (record.key, record.cause, record.state) == ("2027-01-04T00/3000Z-manual-77", "manual", "SUCCEEDED")
    assert record.slot == "2027-01-04T00:30:00+00:00"


def test_deliveries_during_a_pause_are_recorded_and_unpausing_never_fires_at_once(world: World) -> None:
    world.add(missed="catch_up_last")
    schedule = world.schedule
    schedule.pause()
    assert not world.keeper("1", hours=1).step()
    at(world, 3, 600)
    schedule.unpause()
    # The service delivers the slot of the pause after all.
    world.keeper("2").serve()
    assert world.runs.submits == []
    world.keeper("3", hours=4).serve()
    assert [record.state for record in world.history()] == [*["SKIPPED"] * 4, "SUCCEEDED"]
    assert {record.reason for record in world.history()[:4]} == {"paused: by hand"}
    assert world.history()[3].notes == (
        "delivered at 2027-01-04T03:10:00+00:00, 10 min after its slot: late, or by hand, by the job 2",
    )


@pytest.mark.parametrize("may_pause", [True, False])
def test_failures_pause_the_trigger_and_without_permission_the_record_ends_keepers(world, may_pause: bool) -> None:
    world.runs.outcome = lambda plan: State.FAILED
    world.service.may_pause = may_pause
    world.add(notify=("webhook:HOOK",), pause_after_failures=2)
    Book(world.root).change("each", trigger="projects/1/jobs/each")
    for hour in range(4):
        world.keeper(str(hour), hours=hour).serve()
    assert world.service.pauses == (["projects/1/jobs/each"] if may_pause else [])
    assert [record.state for record in world.history()] == ["FAILED", "FAILED", "SKIPPED", "SKIPPED"]
    assert world.history()[3].reason == "paused: 2 failures in a row"
    assert len(world.runs.submits) == 2
    assert [post["event"] for post in world.posts] == ["failed", "failed", "paused"]


def test_a_keeper_of_a_schedule_that_was_deleted_and_made_again_does_nothing(world: World) -> None:
    world.add()
    at(world, 0)
    with pytest.raises(InputError, match="belongs to an earlier schedule"):
        world.keeper().step(schedule="another")
    assert world.history() == []


def test_firings_beyond_the_budget_of_a_month_are_skipped_until_the_next_one(world: World, firing_costs) -> None:
    firing_costs(4.0)
    world.runs.costs_usd = 2.5
    world.add(cron="0 0 * * 1", time_zone="Europe/Berlin", max_cost_usd_per_month=10.0)
    for week in range(8):
        world.clock.time = START.timestamp() - HOUR + week * 7 * DAYS
        world.keeper(str(week)).serve()
    found = world.history()
    # Mondays at midnight in Berlin: four in January, and four in February.
    assert [record.slot[:10] for record in found][3:5] == ["2027-01-25", "2027-02-01"]
    assert [record.state for record in found] == [*["SUCCEEDED"] * 3, "SKIPPED"] * 2
    assert found[3].reason == "budget: 7.50 USD of 10.00 USD a month are spent, and this firing may cost 4.00 USD"
    assert [record.cost_usd for record in found[:4]] == [2.5, 2.5, 2.5, None]


@pytest.mark.parametrize(
    ("run_usd", "keeper_usd", "hours", "counted"),
    [(6.0, 0.0, 1000, "6.00 USD of 10.00 USD"), (1.0, 1.0, 3, "6.00 USD of 10.00 USD")],
    ids=["the most that it can cost", "all of its keeper's life"],
)
def test_a_run_that_goes_on_counts_with(world: World, firing_costs, run_usd, keeper_usd, hours, counted) -> None:
    firing_costs(run_usd)
    world.service.costs_usd, world.service.lives_s, world.runs.takes_s = keeper_usd, 5 * HOUR, hours * HOUR
    world.add(overlap="allow", max_cost_usd_per_month=10.0)
    for hour in range(2):
        world.keeper(str(hour), hours=hour).step()
    assert [record.state for record in world.history()] == ["RUNNING", "SKIPPED"]
    assert counted in world.history()[1].reason


def test_firings_of_one_moment_cannot_break_the_limit_of_a_month_together(world, monkeypatch, firing_costs) -> None:
    """Each of them has read the records before another one has booked."""
    firing_costs(4.0)
    over_month, meeting, met = spending.over_month, Barrier(4), local()

    def after_all_have_read(*about: Any) -> str:
        if not getattr(met, "once", False):
            met.once = True
            meeting.wait(LIMIT_S)
        return over_month(*about)

    monkeypatch.setattr(spending, "over_month", after_all_have_read)
    world.add(overlap="allow", max_cost_usd_per_month=10.0)
    keepers = [world.keeper(str(number), by_hand=True, hours=0.5) for number in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda keeper: keeper.step(), keepers))
    assert sorted(record.state for record in world.history()) == ["RUNNING", "RUNNING", "SKIPPED", "SKIPPED"]
    reasons = {record.reason for record in world.history() if record.state == "SKIPPED"}
    assert reasons == {"budget: 8.00 USD of 10.00 USD a month are spent, and this firing may cost 4.00 USD"}
    # Nothing of it outlives the schedule.
    Book(world.root).remove(Book(world.root).read("each"))
    left = [path.name for path in Path(world.root, "schedules").rglob("*") if path.is_file()]
    assert left == [".lock"]


def test_a_catch_up_run_lets_the_next_slot_wait_as_it_was_simulated(world: World) -> None:
    record = world.add(takes_s=2 * HOUR, missed="catch_up_last")
    keepers = []
    for hour in (0, 3, 4, 5):
        at(world, hour)
        for keeper in keepers:
            keeper.step()
        keepers.append(world.keeper(str(hour)))
        keepers[-1].step()
    while any([keeper.step() for keeper in keepers]):
        world.clock.time += 60
    down = [(START + timedelta(hours=1), START + timedelta(hours=3))]
    plan = Simulation(cron=record.spec.slots, missed="catch_up_last", durations_s=[2 * HOUR], down=down)
    expected = plan.run(START, START + timedelta(hours=6))
    assert [(each.slot, each.state != "SKIPPED") for each in world.history()] == [
        (each.slot.isoformat(), each.action == "fire") for each in expected
    ]
    assert [each.action for each in expected] == ["fire", "skip", "fire", "fire", "skip", "skip"]


def test_times_of_a_record_go_by_the_clock_of_the_service(world: World) -> None:
    """The clock of the machine is a week behind; the end of the run is the service's."""
    world.add()
    keeper = world.keeper(hours=7 * 24)
    world.runs.outcome = lambda plan: State.SUCCEEDED
    at(world, 0)
    assert keeper.step()
    (record,) = (each for each in world.history() if each.is_open)
    assert record.started == keeper.delivery.created and record.taken == keeper.delivery.created
    # A lease is about this machine.
    assert record.expires == START.timestamp() + LEASE_S
    # A run may end by a clock that is further ahead.
    end = world.runs.ends[record.run][0]
    world.runs.ends[record.run] = end - 1e-3, State.SUCCEEDED
    status = world.runs.status
    world.runs.status = lambda url: replace(status(url), since=end + 30 * DAYS)  # type: ignore[method-assign]
    world.clock.time = end
    assert not keeper.step()
    (record,) = (each for each in world.history() if each.run)
    assert (record.ended or 0.0) - (record.started or 0.0) == world.runs.takes_s


def test_keepers_count_for_the_month_with_their_time(world: World, firing_costs, monkeypatch) -> None:
    firing_costs(1.0)
    world.runs.costs_usd, world.service.costs_usd, world.runs.takes_s = 1.0, 2.0, 2 * HOUR
    world.add(cron="0 0 * * *", max_cost_usd_per_month=12.0)
    for day in range(4):
        world.clock.time = START.timestamp() + day * DAYS
        world.keeper(str(day)).serve()
    # Each run costs 1 $, and the two hours of its keeper 4 $: none begins without the money for both.
    assert [record.state for record in world.history()] == ["SUCCEEDED", "SUCCEEDED", "SKIPPED", "SKIPPED"]
    spent = "budget: 10.00 USD of 12.00 USD a month are spent"
    assert world.history()[3].reason == f"{spent}, and this firing may cost 5.00 USD, 4.00 USD of it for its keeper"
    services = SimpleNamespace(deliveries=world.service)
    monkeypatch.setattr(handle.backends, "load", lambda name: SimpleNamespace(services=services))
    Book(world.root).change("each", trigger="projects/1/jobs/each")
    assert world.schedule.spent_usd() == 10.0


def test_a_run_that_is_resumed_after_its_slot_counts_for_the_month(world: World, monkeypatch) -> None:
    monkeypatch.setattr(spending, "most_usd", lambda plan: 6.0 if plan.job.limits.timeout_s == 9 * HOUR else 4.0)
    world.runs.costs_usd, world.runs.outcome = 2.0, lambda plan: State.FAILED
    world.add(max_cost_usd_per_month=9.0, pause_after_failures=0)
    world.keeper("0", hours=0).serve()
    run = world.history()[0].run
    # It goes on with a longer time limit than the schedule's, and has cost more by the end.
    made = world.runs.plans[run]
    limits = replace(made.job.limits, timeout_s=9 * HOUR)
    world.runs.plans[run] = replace(made, run_id=run, job=replace(made.job, limits=limits))
    world.runs.ends[run] = START.timestamp() + 1.5 * HOUR, State.SUCCEEDED
    for hour, usd in ((1, 2.0), (2, 5.5), (3, 4.0)):
        at(world, hour)
        world.runs.costs_usd = usd
        world.keeper(str(hour)).step()
    over = "budget: {} USD of 9.00 USD a month are spent, and this firing may cost 4.00 USD"
    assert [record.reason for record in world.history()[1:3]] == [over.format("8.00"), over.format("5.50")]
    assert world.history()[3].state == "RUNNING"


@pytest.mark.parametrize(("most_usd", "state", "resumes"), [(4.0, "CHECKPOINTED", 0), (None, "SUCCEEDED", 1)])
def test_no_billed_run_is_resumed_in_a_limited_month(world: World, firing_costs, most_usd, state, resumes) -> None:
    firing_costs(most_usd)
    world.add(outcome=State.CHECKPOINTED, max_cost_usd_per_month=9.0)
    world.keeper(hours=0).serve()
    assert (world.history()[0].state, len(world.runs.resumed)) == (state, resumes)


def test_a_run_that_cannot_be_read_counts_and_keeps_no_slot_from_starting(world, monkeypatch, firing_costs) -> None:
    firing_costs(4.0)
    world.runs.costs_usd, world.runs.outcome = 2.0, lambda plan: State.FAILED
    world.add(max_cost_usd_per_month=13.0, pause_after_failures=0)

    def damaged(url: str) -> None:
        raise CorruptRunError("plan.json is damaged.")

    for hour in range(3):
        world.keeper(str(hour), hours=hour).serve()
        monkeypatch.setattr(world.runs, "state_of", damaged)
    found = world.history()
    assert [record.state for record in found] == ["FAILED", "FAILED", "SKIPPED"]
    assert found[2].reason.startswith("budget: 12.00 USD of 13.00 USD")


def test_the_most_that_a_firing_can_cost_is_the_cost_of_its_machines(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print(1)")
    target = sdk.Vertex(project="podlift", regions=("us-central1",), bucket="runs", image="image")
    plan = sdk.plan(tmp_path / "train.py", accelerator="t4", backend=target, timeout="2h")
    most = spending.most_usd(plan)
    assert most is not None and most > 0
    assert spending.over_month(plan, most, 0.0) == ""
    assert spending.over_month(plan, most, 0.01).startswith("budget: 0.01 USD of ")
    assert spending.over_month(replace(plan, emulator="127.0.0.1:1"), 0.0, 100.0) == "", "an emulator bills nothing"


@pytest.mark.parametrize(
    ("zone", "cron"),
    [
        ("Europe/Berlin", "30 2 * * 0"),
        ("America/New_York", "30 1 * * 0"),
        full_only("Europe/Berlin", "30 2 * * *"),
        full_only("America/New_York", "30 2 * * *"),
    ],
)
def test_a_year_of_deliveries_gives_each_cron_instant_one_record_and_at_most_one_run(world, zone, cron) -> None:
    """Some deliveries are early, late, lost or repeated."""
    world.add(cron=cron, time_zone=zone)
    chance, job = random.Random(18), 0
    instants = []
    for instant in CronSim(cron, START.astimezone(ZoneInfo(zone))):
        if instant >= START + timedelta(days=365):
            break
        instants.append(instant.astimezone(timezone.utc))
        lost = 10 < len(instants) < 50 and len(instants) % 9 == 0
        for _ in range(0 if lost else chance.choice([1, 1, 2])):
            job += 1
            world.clock.time = max(world.clock.now(), instant.timestamp() + chance.choice([-0.2, 1.0, 3000.0]))
            world.keeper(str(job)).serve()
    found = world.history()
    assert [record.moment for record in found] == instants
    assert sorted(world.runs.submits) == sorted(record.run for record in found if record.state == "SUCCEEDED")
    assert len(set(world.runs.submits)) == len(world.runs.submits)
    assert {record.reason for record in found if record.state == "SKIPPED"} == {"missed: no keeper took it"}
