"""The runs of a server, under a virtual clock and with runs that only exist on paper: no test waits or starts a process."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paper_runs import HOUR, START, PaperRuns, World, at
from registered_models import register
from support import LIMIT_S, FakeClock

import sdk
from sdk import State, launch
from sdk.backends.deliveries import SERVER_LEASE_S as LEASE_S
from sdk.cli import schedule_text
from sdk.errors import PodliftError
from sdk.job.plan import Plan
from sdk.model_registry.models import Model
from sdk.planning import initial
from sdk.planning.settings.merge import Destination
from sdk.process.heartbeats import Heart
from sdk.schedules import creation
from sdk.schedules.notices import Notice, Notifier
from sdk.schedules.records import HEARTBEAT, Book
from sdk.schedules.runs import LocalRuns
from sdk.schedules.simulation import Simulation
from sdk.status import Registered

NOTICE = Notice(schedule="each", event="failed", slot="", state="FAILED", reason="why", run="", text="")


@pytest.mark.shows("Schedules start runs on your machine or on Vertex AI")
def test_each_firing_is_a_separate_run_with_an_id_from_its_slot(world: World, caplog) -> None:
    caplog.set_level("INFO", "podlift.schedules")
    world.add(time_zone="Europe/Berlin")
    world.advance(world.server(), 3)
    assert world.shown() == ["0 SUCCEEDED at 0", "1 SUCCEEDED at 1", "2 SUCCEEDED at 2"]
    runs = [record.run for record in world.history()]
    assert [run[:-7] for run in runs] == ["each-20270104t010000", "each-20270104t020000", "each-20270104t030000"]
    assert list(world.runs.plans) == runs
    for hour in (1, 2):
        assert f"The schedule each: the slot 2027-01-04T0{hour}:00:00+01:00: SUCCEEDED" in caplog.text
    # The first has no success before it.
    since = ["", "2027-01-04T01:00:00+01:00", "2027-01-04T02:00:00+01:00"]
    assert [plan.code.argv[1:] for plan in world.runs.plans.values()] == [["04", "--since", each] for each in since]
    assert all(plan.job.args == plan.code.argv for plan in world.runs.plans.values())


@pytest.mark.parametrize(
    ("overlap", "expected"),
    [
        ("skip", ["0 SUCCEEDED at 0", "1 SKIPPED", "2 SUCCEEDED at 2", "3 SKIPPED"]),
        ("allow", ["0 SUCCEEDED at 0", "1 SUCCEEDED at 1", "2 SUCCEEDED at 2", "3 RUNNING at 3"]),
        ("queue", ["0 SUCCEEDED at 0", "1 SUCCEEDED at 1.5", "2 RUNNING at 3", "3 WAITING"]),
        ("replace", ["0 CANCELLED at 0", "1 CANCELLED at 1.00278", "2 CANCELLED at 2.00278", "3 RUNNING at 3.00278"]),
    ],
)
def test_the_overlap_policy_decides_about_a_slot_during_its_predecessors_run(world, overlap, expected) -> None:
    world.add(takes_s=1.5 * HOUR, overlap=overlap)
    world.advance(world.server(), 3.6)
    assert world.shown() == expected


def test_a_slot_that_waits_for_a_cancelled_run_gives_way_to_a_newer_one(world: World) -> None:
    world.add(takes_s=9 * HOUR, overlap="replace")
    server = world.server()
    at(world, 0)
    server.tick()
    for seconds in (1, 2):
        at(world, 0, seconds)
        world.fire("each")
    world.clock.time += 60
    for _ in range(2):
        server.tick()
    first, older, newer = world.history()
    assert [record.state for record in (first, older, newer)] == ["CANCELLED", "SKIPPED", "RUNNING"]
    assert older.reason == f"overlap: replaced by {newer.slot}"


def test_a_server_killed_between_lock_and_submit_starts_the_slot_once_after_restart(world: World) -> None:
    world.add()
    world.clock.time = START.timestamp()
    world.killed(lambda: world.server().tick())
    assert [record.state for record in world.history()] == ["TAKEN"]
    world.server().tick()
    # This process still lives, so that its lease counts.
    assert world.runs.plans == {}
    world.clock.time += LEASE_S + 1
    for _ in range(3):
        world.server().tick()
    assert len(world.runs.submits) == 1
    assert world.shown() == ["0 RUNNING at 0.166944"]


def test_a_lost_firing_resumes_its_own_run_a_few_times(world: World) -> None:
    world.add(outcome=State.LOST)
    world.advance(world.server(), 0.5)
    assert world.runs.resumed == list(world.runs.plans)
    assert world.shown() == ["0 SUCCEEDED at 0"]
    world.runs.resumed_outcome = State.LOST
    world.advance(world.server(), 1)
    assert world.history()[-1].state == "LOST"
    assert world.runs.resumed[1:] == [list(world.runs.plans)[-1]] * 3


def test_failures_pause_a_schedule_and_are_notified(world: World) -> None:
    world.add(outcome=State.FAILED, notify=("webhook:HOOK",), pause_after_failures=2)
    server = world.server()
    world.advance(server, 4)
    assert [record.state for record in world.history()] == ["FAILED", "FAILED", "SKIPPED", "SKIPPED"]
    assert [post["event"] for post in world.posts] == ["failed", "failed", "paused"]
    assert "podlift schedule unpause each" in world.posts[-1]["text"]
    assert world.schedule.problems()[0] == "it is paused: 2 failures in a row"
    # The failures before the end of a pause do not count again.
    world.schedule.unpause()
    world.advance(server, 1)
    assert Book(world.root).read("each").paused == ""


@pytest.mark.parametrize(("fields", "hours"), [({"notify_skips": 2}, [2, 4]), ({}, [3]), ({"notify_skips": 0}, [])])
def test_repeated_skips_are_notified_and_a_webhook_never_ends_a_server(world: World, fields, hours) -> None:
    world.add(takes_s=100 * HOUR, notify=("webhook:HOOK", "webhook:MISSING"), **fields)
    server = world.server()
    world.advance(server, 5)
    assert [(post["event"], post["slot"]) for post in world.posts] == [
        ("skipped", f"2027-01-04T0{hour}:00:00+00:00") for hour in hours
    ]


@pytest.mark.parametrize(
    ("outcome", "text"),
    [
        ("promoted", "was promoted: better by 0.1. Next: podlift models status digits 2"),
        ("asks", "needs an approval: better by 0.1. Next: podlift models promote digits 2 --as-compared"),
        ("kept", ""),
        ("registered", ""),
    ],
)
def test_a_promotion_and_a_question_are_notified_with_the_next_command(world: World, outcome: str, text: str) -> None:
    world.runs.registered = Registered(model="digits", version=2, outcome=outcome, reason="better by 0.1")
    world.add(notify=("webhook:HOOK",))
    world.advance(world.server(), 0.5)
    posts = [(post["event"], post["text"], post["model"], post["version"]) for post in world.posts]
    said = f"podlift schedule each: version 2 of 'digits' {text}"
    assert posts == ([(outcome, said, "digits", 2)] if text else [])
    (record,) = world.history()
    assert record.registered == world.runs.registered
    assert world.runs.registered.line in schedule_text.row_of_slot(record)[-1]


def test_a_webhook_is_retried_and_its_url_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    calls, clock = [], FakeClock()

    def post(url: str, data: bytes) -> None:
        calls.append(clock.now())
        raise OSError(url)

    Notifier(clock, {"HOOK": "https://hooks.invalid/secret"}, post).deliver("webhook:HOOK", NOTICE)
    assert len(calls) > 2 and calls[-1] - calls[0] <= 45
    assert "webhook:HOOK" in caplog.text and "secret" not in caplog.text


def test_a_webhook_in_secret_manager_is_read_when_there_is_something_to_say(caplog: pytest.LogCaptureFixture) -> None:
    name, posts = "projects/p/secrets/hook/versions/latest", list[str]()

    def denied(name: str) -> str:
        raise PodliftError("403: a role is missing")

    def post(url: str, data: bytes) -> None:
        posts.append(url)

    Notifier(FakeClock(), {}, post, lambda each: f"https://hooks.invalid/{each}\n").deliver(f"webhook:{name}", NOTICE)
    assert posts == [f"https://hooks.invalid/{name}"]
    Notifier(FakeClock(), {}, post, denied).deliver(f"webhook:{name}", NOTICE)
    assert "403: a role is missing" in caplog.text and len(posts) == 1


def test_a_process_that_is_about_to_end_waits_until_its_notices_have_arrived(monkeypatch: pytest.MonkeyPatch) -> None:
    join, is_waited_for, posts = threading.Thread.join, threading.Event(), list[str]()

    def joined(thread: threading.Thread, timeout: float | None = None) -> None:
        is_waited_for.set()
        join(thread, timeout)

    def post(url: str, data: bytes) -> None:
        # It takes until the process waits for it.
        is_waited_for.wait(LIMIT_S)
        posts.append(url)

    monkeypatch.setattr(threading.Thread, "join", joined)
    notifier = Notifier(FakeClock(), {"HOOK": "https://hooks.invalid/"}, post)
    notifier.send(["webhook:HOOK"], NOTICE)
    notifier.settle()
    assert posts == ["https://hooks.invalid/"]


@pytest.mark.process
def test_a_command_gets_the_notice_as_json(tmp_path: Path) -> None:
    notifier = Notifier(FakeClock())
    notifier.send((f"command:tee {tmp_path / 'said'}", "command:false", "command:no-such-command"), NOTICE)
    notifier.settle()
    assert json.loads((tmp_path / "said").read_text())["reason"] == "why"


def test_a_run_and_a_success_are_remembered_however_many_slots_lie_between(world, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("sdk.schedules.recent_slots.REMEMBERED", 10)
    data = tmp_path / "rows.csv"
    data.write_text("a\n")
    world.add(cron="* * * * *", inputs={"rows": str(data)}, when=("data_changed(rows)",))
    world.advance(world.server(), 30 / 60)
    assert len(world.runs.plans) == 1
    # A server that starts now reads the newest records, and the records that they refer to.
    world.clock.time += 60
    world.server().tick()
    assert len(world.runs.plans) == 1
    assert world.history()[-1].reason.startswith("data_changed(rows)")
    data.write_text("b\nb\n")
    world.runs.takes_s = 1000 * HOUR
    world.advance(world.server(), 30 / 60)
    world.clock.time += 60
    world.server().tick()
    assert len(world.runs.plans) == 2
    assert world.history()[-1].reason.startswith("overlap")


def test_preconditions_skip_a_slot_with_the_reason(world: World, tmp_path: Path) -> None:
    data = tmp_path / "rows.csv"
    data.write_text("a\n" * 10)
    world.add(inputs={"rows": str(data)}, when=("data_changed(rows)",))
    world.add(name="more", inputs={"rows": str(data)}, when=("min_new_examples(rows, 5)", "older_than(90m)"))
    server = world.server()
    world.advance(server, 2)
    data.write_text("a\n" * 14)
    world.advance(server, 2)
    data.write_text("a\n" * 15)
    world.advance(server, 1)
    assert [record.state for record in world.history()] == ["SUCCEEDED", "SKIPPED", "SUCCEEDED", "SKIPPED", "SUCCEEDED"]
    assert world.history()[1].reason == "data_changed(rows): rows is unchanged since 2027-01-04T00:00:00+00:00"
    more = world.history("more")
    assert [record.state for record in more] == ["SUCCEEDED", "SKIPPED", "SKIPPED", "SKIPPED", "SUCCEEDED"]
    assert more[2].reason == "min_new_examples(rows, 5): 4 new examples since 2027-01-04T00:00:00+00:00"


def test_an_input_that_names_its_slot_is_looked_up_when_the_slot_fires(world: World, tmp_path: Path) -> None:
    world.add(inputs={"rows": "day-{slot:%H}.csv"})
    (tmp_path / "day-01.csv").write_text("a\n")
    world.advance(world.server(), 2)
    missing, found = world.history()
    assert missing.state == "FAILED" and missing.run == ""
    assert "not started: inputs.rows" in missing.reason and "day-00.csv" in missing.reason
    assert found.state == "SUCCEEDED"
    assert world.runs.plans[found.run].inputs == {"rows": str(tmp_path / "day-01.csv")}


def test_a_manual_firing_is_a_separate_slot(world: World) -> None:
    world.add()
    server = world.server()
    record = world.fire("each")
    assert (record.state, record.cause) == ("RUNNING", "manual")
    world.clock.time += 1
    again = world.fire("each")
    assert again.state == "SKIPPED" and record.run in again.reason
    world.advance(server, 1.1)
    assert [(each.cause, each.state) for each in world.history()] == [
        ("manual", "SUCCEEDED"), ("manual", "SKIPPED"), ("schedule", "SUCCEEDED"), ("schedule", "SUCCEEDED"),
    ]  # fmt: skip


@settings(max_examples=8)
@given(
    overlap=st.sampled_from(["skip", "queue", "allow"]),
    missed=st.sampled_from(["skip", "catch_up_last"]),
    hours=st.lists(st.floats(0.1, 4), min_size=3, max_size=10),
    takes=st.floats(0.1, 5),
)
def test_whatever_happens_each_slot_has_one_record_and_at_most_one_run(
    tmp_path_factory, template, overlap, missed, hours, takes
) -> None:
    clock = FakeClock(START.timestamp() - 60)
    world = World(str(tmp_path_factory.mktemp("root")), template, clock, PaperRuns(clock, takes_s=takes * HOUR))
    record = world.add(overlap=overlap, missed=missed)
    for number, span in enumerate(hours):
        # Served, then not served for a while, by a new server each time.
        if number % 2:
            clock.time += span * HOUR
        else:
            world.advance(world.server(), span)
    world.server().tick()
    found = world.history()
    slots = list(record.spec.slots.between(START, datetime.fromtimestamp(clock.now(), timezone.utc)))
    assert [each.moment for each in found] == slots
    assert sorted(world.runs.submits) == sorted(each.run for each in found if each.started)
    assert all(each.reason for each in found if each.state == "SKIPPED")


@pytest.mark.full
def test_a_year_of_a_daily_schedule_equals_its_simulation(world: World) -> None:
    record = world.add(takes_s=30 * HOUR, cron="30 2 * * *", time_zone="America/New_York")
    world.advance(world.server(), 365 * 24)
    expected = Simulation(cron=record.spec.slots, durations_s=[30 * HOUR]).run(START, START + timedelta(days=365))
    found = world.history()
    assert len(found) == 365
    assert [(each.slot, each.state != "SKIPPED") for each in found] == [
        (each.slot.isoformat(), each.action == "fire") for each in expected
    ]


def test_cron_serves_the_slots_after_the_last_server_and_a_clock_ahead_is_no_server(world: World) -> None:
    world.add()
    book = Book(world.root)
    unserved = "no server has run since 20"
    Heart(book.store, HEARTBEAT, "other", FakeClock(world.clock.now() + HOUR)).beat()
    ahead = "a server's last sign of life is 1 h after now. Next: set the clocks of both machines"
    assert world.schedule.problems()[0] == ahead
    Heart(book.store, HEARTBEAT, "other", FakeClock(world.clock.now() - HOUR)).beat(ended=True)
    assert world.schedule.problems()[0].startswith(unserved)
    world.clock.time += 61
    world.server().serve_once()
    assert world.schedule.problems() == []


@pytest.fixture
def warm(tmp_path: Path) -> World:
    (tmp_path / "train.py").write_text("print(1)\n")
    job = sdk.Job(tmp_path / "train.py", warm_start="champion")
    spec = creation.draft(name="each", cron="0 * * * *", trigger="serve")
    made = creation.prepare(spec, job, {}, Destination(root=tmp_path / "root"))
    clock = FakeClock(START.timestamp() - 60)
    return World(str(tmp_path / "root"), made.plan, clock, PaperRuns(clock))


def versions(warm: World) -> list[int | None]:
    return [plan.initial.version if plan.initial else None for plan in warm.runs.plans.values()]


def test_each_firing_starts_from_the_current_champion_and_the_template_names_none(warm: World) -> None:
    assert warm.template.initial is None
    assert "warm start   the champion of 'each' at the time of the firing, weights only" in str(warm.template)
    warm.add()
    server = warm.server()
    warm.advance(server, 1)
    for _ in range(2):
        register(warm.root, "each", {"model.keras": b"weights"})
        warm.advance(server, 1)
    Model(warm.root, "each").rollback()
    warm.advance(server, 1)
    assert versions(warm) == [0, 1, 2, 1]


def test_a_damaged_champion_fails_the_slot_before_anything_is_spent(warm: World) -> None:
    register(warm.root, "each", {"model.keras": b"weights"})
    (part,) = Path(warm.root, "models", "blobs").iterdir()
    part.write_bytes(b"other")
    warm.add()
    warm.advance(warm.server(), 0.5)
    (slot,) = warm.history()
    assert slot.state == "FAILED"
    assert "not started: Version 1 of 'each' is damaged" in slot.reason
    assert warm.runs.plans == {}


def test_a_run_that_another_server_has_submitted_keeps_its_version(warm: World, monkeypatch) -> None:
    register(warm.root, "each", {"model.keras": b"weights"})
    stored = replace(warm.template, run_id="each-20270104t010000-aaaaaa")
    stored = replace(stored, initial=initial.chosen("champion", stored.model, stored.root))
    finished: list[Plan] = []
    monkeypatch.setattr(launch, "finish", finished.append)
    monkeypatch.setattr(launch, "execute", lambda plan: pytest.fail("it exists"))
    Path(stored.paths.events).mkdir(parents=True)
    Path(stored.paths.plan).write_text(stored.to_json())
    LocalRuns(warm.clock).submit(replace(stored, initial=None))
    assert [plan.initial and plan.initial.version for plan in finished] == [1]
