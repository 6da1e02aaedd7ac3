"""Processes that meet at one slot, and outages in the middle of a step: a slot's record tells of the run that goes on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace

import pytest
from paper_runs import HOUR, World, at

from sdk import InputError, Reason, State, Status
from sdk.backends import keeper_main
from sdk.errors import StoreError, StoreUnavailableError
from sdk.records import spending
from sdk.schedules import kept_slot, preconditions
from sdk.schedules.records import Book
from sdk.schedules.runs import KeptRuns


# Seconds of the preconditions and of the submit: the lease of a keeper is a minute, and one or both of them outlast it.
@pytest.mark.parametrize(("check_s", "submit_s"), [(0, 70), (50, 20), (70, 70)])
@pytest.mark.parametrize("other", ["a run by hand", "the next slot", "the same slot again", "a server"])
def test_a_run_submitted_while_others_take_its_slot_over_is_recorded_as_running(
    world: World, monkeypatch: pytest.MonkeyPatch, check_s: float, submit_s: float, other: str
) -> None:
    world.add(takes_s=3 * HOUR, max_cost_usd_per_month=100.0)
    submit, first, slow = world.runs.submit, world.keeper("1", hours=0), iter([True])

    def comes() -> None:
        if other == "a server":
            world.server().tick()
            return
        at_next = {"hours": 1} if other == "the next slot" else {}
        world.keeper("1b" if "same" in other else "2", by_hand="hand" in other, **at_next).step()

    def submitted(plan) -> None:
        if next(slow, False):
            world.clock.time += submit_s
            comes()
        submit(plan)

    checks = iter([check_s])
    monkeypatch.setattr(preconditions, "unmet", lambda *_: world.clock.sleep(next(checks, 0)) or ("", {}))
    world.runs.submit = submitted
    for _ in range(3):
        first.step()
    mine = world.history()[0]
    assert (mine.state, mine.run in world.runs.plans, mine.ended, mine.reason) == ("RUNNING", True, None, "")
    world.clock.time += 4 * HOUR
    first.step()
    world.server().tick()
    assert world.history()[0].state == "SUCCEEDED"


@pytest.mark.parametrize("other", ["keeper", "server"])
def test_of_two_processes_that_find_no_record_of_a_slot_one_submits_its_run(world, monkeypatch, other: str) -> None:
    world.add()
    first, second = world.keeper("1", hours=0), world.keeper("2", hours=0)
    take, faster = Book.take, iter([second.step if other == "keeper" else world.server().tick])

    def taken(self, record, slot):
        for step in faster:
            step()
        return take(self, record, slot)

    monkeypatch.setattr(Book, "take", taken)
    first.step()
    [record] = world.history()
    assert (record.state, record.keeper) == ("RUNNING", second.delivery.job if other == "keeper" else "")
    assert world.runs.submits == [record.run]


def test_a_slot_that_waits_without_a_server_is_a_problem_until_there_is_one(world: World) -> None:
    world.add(takes_s=9 * HOUR, overlap="queue")
    at(world, 0, 1200)
    world.fire("each")
    at(world, 0, 1260)
    assert world.fire("each").state == "WAITING"

    def has_no_server() -> bool:
        return any(each.endswith("no server is there to start it. Next: podlift schedule serve") for each in problems())

    problems = world.schedule.problems
    assert not has_no_server()
    world.clock.time += 660
    assert has_no_server()
    world.server().tick()
    assert not has_no_server()


def test_a_slot_by_hand_that_waits_without_a_server_is_skipped_by_the_next_delivery(world: World) -> None:
    world.add(takes_s=9 * HOUR, overlap="queue")
    for seconds in (1200, 1260):
        at(world, 0, seconds)
        world.fire("each")
    world.keeper("1", hours=1).step()
    assert world.history()[2].reason == "missed: no server was there while it waited"


def test_a_server_that_lives_keeps_a_slot_that_waits(world: World) -> None:
    world.add(takes_s=3 * HOUR, overlap="queue")
    server = world.server()
    at(world, 0)
    server.tick()
    at(world, 1)
    for _ in range(59):
        server.tick()
        world.clock.time += 60
    world.keeper("3", hours=2).step()
    assert world.history()[1].state == "WAITING"


def test_of_two_servers_that_see_a_lost_run_one_resumes_it(world: World) -> None:
    world.add(outcome=State.LOST)
    first, second = world.server(), world.server()
    at(world, 0)
    first.tick()
    second.tick()
    world.clock.time += 120
    status, resume, others = world.runs.status, world.runs.resume, iter([second])

    def resumed(url: str) -> None:
        if status(url).state is not State.LOST:
            raise InputError("it goes on")
        resume(url)

    def looked(url: str) -> Status:
        seen = status(url)
        for other in others:
            other.tick()
        return seen

    world.runs.resume, world.runs.status = resumed, looked  # type: ignore[method-assign]
    first.tick()
    assert ([record.state for record in world.history()], len(world.runs.resumed)) == (["RUNNING"], 1)


def test_a_run_that_another_process_resumes_at_the_same_moment_goes_on_in_its_record(world: World) -> None:
    world.add(outcome=State.LOST)
    at(world, 0)
    server = world.server()
    server.tick()
    world.clock.time += 120

    def resumed(url: str) -> None:
        run = url.rpartition("/")[2]
        world.runs.ends[run] = world.clock.now() + HOUR / 2, State.SUCCEEDED
        raise InputError("the run is being resumed elsewhere")

    world.runs.resume = resumed  # type: ignore[method-assign]
    server.tick()
    assert world.history()[0].state == "RUNNING"
    world.clock.time += HOUR / 2
    server.tick()
    assert world.history()[0].state == "SUCCEEDED"


@pytest.mark.parametrize("who", ["keeper", "server"])
def test_an_outage_while_a_lost_run_is_resumed_costs_neither_the_slot_nor_a_resume(world, monkeypatch, who) -> None:
    world.runs.outcome, world.runs.resumed_outcome = (lambda plan: State.LOST), State.LOST
    world.add()
    at(world, 0)
    keeper, server = world.keeper(), world.server()
    step = keeper.step if who == "keeper" else server.tick
    step()
    resume, outages = world.runs.resume, iter([StoreUnavailableError("no answer")] * 5)

    update, away = Book.update, list[Exception]()

    def failing(url: str) -> None:
        for error in outages:
            # Of the bucket, too, which then takes no record either.
            away.append(error)
            raise error
        resume(url)

    def updated(self, *records) -> bool:
        if away:
            raise away[0]
        return update(self, *records)

    monkeypatch.setattr(Book, "update", updated)

    world.runs.resume = failing  # type: ignore[method-assign]
    states = []
    for _ in range(5 + 4):
        world.clock.time += 120
        with suppress(StoreUnavailableError):
            step()
        away.clear()
        states.append(world.history()[0].state)
    assert (states, len(world.runs.resumed)) == (["RUNNING"] * 8 + ["LOST"], 3)


def test_no_slot_that_waits_is_started_in_the_step_that_pauses_the_schedule(world: World) -> None:
    world.add(outcome=State.FAILED, takes_s=1.5 * HOUR, pause_after_failures=1, overlap="queue")
    world.keeper("1", hours=0).step()
    world.keeper("2", hours=1).serve()
    assert [record.state for record in world.history()] == ["FAILED", "SKIPPED"]


def test_a_pause_after_several_failures_of_one_step_is_told_once(world: World) -> None:
    world.runs.outcome = lambda plan: State.FAILED
    world.runs.takes_s = 1.5 * HOUR
    world.add(notify=("webhook:HOOK",), pause_after_failures=1, overlap="allow")
    server = world.server()
    for hour in (0, 1, 9):
        at(world, hour)
        server.tick()
    assert [post["event"] for post in world.posts].count("paused") == 1


def test_an_outage_in_the_first_look_hides_no_run_that_goes_on(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.add(takes_s=100 * HOUR)
    at(world, 0, 1800)
    world.server().tick()
    world.keeper("m", by_hand=True).step()
    for hour in range(1, 6):
        world.keeper(str(hour), hours=hour).step()
    slots, outages = Book.slots, iter([StoreUnavailableError("no answer")])

    def failing(self, record, keys):
        keys = list(keys)
        for error in outages if keys else ():
            raise error
        return slots(self, record, keys)

    keeper = world.keeper("6", hours=6)
    monkeypatch.setattr(Book, "slots", failing)
    with pytest.raises(StoreUnavailableError):
        keeper.step()
    keeper.step()
    assert world.history()[-1].reason.startswith("overlap: the run each-20270104t003000-")


def test_a_run_is_followed_again_after_an_error_of_the_store(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = iter([StoreError("odd"), Status(state=State.RUNNING, reason=Reason.TRAINING)])

    class Followed:
        def following(self) -> Iterator[Status]:
            for each in seen:
                if isinstance(each, Exception):
                    raise each
                yield each

    monkeypatch.setattr(KeptRuns, "_run", lambda self, url: Followed())
    runs = KeptRuns(world.clock)
    with pytest.raises(StoreError):
        runs.status("x")
    assert runs.status("x").state is State.RUNNING


def test_a_command_that_was_killed_while_it_caught_up_goes_on_with_its_own_slot(world: World) -> None:
    world.add(missed="catch_up_last")
    world.killed(lambda: world.deliver(3, id="x"))
    record = world.deliver(3, 120, id="x").record
    assert (record.slot[:13], record.state) == ("2027-01-04T03", "SUCCEEDED")
    assert [each.state for each in world.history()[-2:]] == ["SUCCEEDED", "SUCCEEDED"]


def test_a_run_keeps_its_keeper_while_its_schedule_is_being_removed(world: World, monkeypatch) -> None:
    record, book = world.add(), Book(world.root)
    keeper, delete, steps = world.keeper(hours=0), book.store.delete, list[bool]()
    assert keeper.step()

    def deleted(key: str) -> None:
        delete(key)
        steps.append(keeper.step())

    monkeypatch.setattr(book.store, "delete", deleted)
    book.remove(record)
    assert len(steps) > 2
    assert all(steps)
    world.clock.time += 2 * world.runs.takes_s
    assert not keeper.step()


def test_records_that_disappear_in_the_middle_of_a_step_end_no_keeper(world: World, monkeypatch) -> None:
    record, book = world.add(), Book(world.root)
    keeper, slots, removal = world.keeper(hours=0), Book.slots, iter([True])
    assert keeper.step()

    def read(self, *about):
        if next(removal, False):
            book.remove(record)
        return slots(self, *about)

    monkeypatch.setattr(Book, "slots", read)
    assert keeper.step()
    assert keeper.step()


def test_a_keeper_leaves_the_lost_run_of_an_earlier_keeper_alone_that_was_killed(world: World) -> None:
    world.add(outcome=State.LOST)
    submit = world.runs.submit

    def killed(plan) -> None:
        submit(plan)
        raise KeyboardInterrupt

    world.runs.submit = killed  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        world.keeper("1", hours=0).step()
    world.runs.submit = submit  # type: ignore[method-assign]
    later = world.keeper("2", hours=1)
    later.step()
    later.step()
    assert (world.runs.resumed, world.history()[0].keeper) == ([], "projects/1/jobs/1")


def test_a_keeper_killed_while_it_takes_an_earlier_slot_over_does_not_start_it_later(world: World, monkeypatch) -> None:
    world.add()
    world.killed(lambda: world.keeper("1", hours=0).step())
    later = world.keeper("2", hours=1)

    def killed(url: str) -> Status:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(world.runs, "status", killed)
        with pytest.raises(KeyboardInterrupt):
            later.step()
    world.clock.time += 120
    later.step()
    later.step()
    assert [record.state for record in world.history()] == ["SKIPPED", "RUNNING"]


def test_a_price_of_the_keeper_that_is_not_known_is_in_the_record_of_its_slot(world: World, monkeypatch) -> None:
    def unknown(*_: object) -> None:
        raise InputError("the table of prices is damaged")

    delivery = world.keeper("1", hours=0).delivery
    service = SimpleNamespace(delivery=lambda *_: delivery, keeper_price=unknown)
    backend = SimpleNamespace(services=SimpleNamespace(deliveries=service))
    monkeypatch.setattr(kept_slot.backends, "load", lambda name: backend)
    monkeypatch.setattr(spending, "most_usd", lambda plan: 4.0)
    world.add(max_cost_usd_per_month=100.0)
    kept = kept_slot.of_container({"root": world.root, "schedule": "each", "id": "each"}, world.root, world.clock)
    assert not kept.step()
    [record] = world.history()
    assert (record.state, record.reason) == ("FAILED", "not started: the table of prices is damaged")


@pytest.mark.parametrize(("takes_s", "outcome"), [(HOUR, State.SUCCEEDED), (0.0, State.SUCCEEDED), (0.0, State.FAILED)])
def test_a_run_that_goes_on_after_its_submit_has_failed_is_followed(world, monkeypatch, takes_s, outcome) -> None:
    submit, world.runs.takes_s, world.runs.outcome = world.runs.submit, takes_s, lambda plan: outcome

    def fails_late(plan) -> None:
        submit(plan)
        raise OSError("no space left")

    monkeypatch.setattr(world.runs, "submit", fails_late)
    world.add()
    at(world, 0)
    server = world.server()
    server.tick()
    (record,) = world.history()
    if outcome is State.FAILED:
        assert record.reason == "not started: no space left"
    else:
        assert (record.state, record.notes) == ("RUNNING", ("the submit failed: no space left",))
    world.clock.time += 2 * HOUR
    server.tick()
    assert world.history()[0].state == outcome.value


@pytest.mark.parametrize("made_again", [True, False])
def test_the_time_of_a_keeper_may_end_after_its_schedule_was_removed(world: World, *, made_again: bool) -> None:
    record = world.add()
    world.runs.takes_s = 100 * HOUR
    keeper, book = world.keeper(hours=0), Book(world.root)
    assert keeper.step()
    book.remove(record)
    if made_again:
        plan = book.put_plan("each", replace(world.template, root=world.root))
        assert book.add(replace(record, id="new", plan=plan))
    keeper_main.keep(keeper.kept(), HOUR, world.clock)
    assert len(world.runs.submits) == 1
