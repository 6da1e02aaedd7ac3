"""The instants of a cron expression, also where clocks change, and their simulation: what fires, is skipped and overlaps."""

from __future__ import annotations

import itertools
import json
from datetime import datetime, timedelta, timezone
from itertools import takewhile
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import input_error

from sdk import InputError
from sdk.cli import app
from sdk.schedules import clock_changes
from sdk.schedules.policy import MISSED, OVERLAPS
from sdk.schedules.simulation import Simulation
from sdk.schedules.slots import Cron, check_portable

UTC = timezone.utc
ZONES = ("Europe/Berlin", "America/New_York")
START, END = datetime(2027, 1, 1, tzinfo=UTC), datetime(2028, 1, 1, tzinfo=UTC)
CHANGES = {"Europe/Berlin": ((3, 28), (10, 31)), "America/New_York": ((3, 14), (11, 7))}


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


def utc(moments) -> list[datetime]:
    return [moment.astimezone(UTC) for moment in moments]


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("expression", ["30 2 * * *", "0 3 * * 1", "30 1 * * 0", "0,30 1-3 * * *", "15 */6 1 * 7"])
def test_a_year_of_slots_has_cronsims_instants(expression: str, zone: str) -> None:
    from cronsim import CronSim

    begin = START.astimezone(ZoneInfo(zone)) - timedelta(seconds=1)
    expected = takewhile(lambda slot: slot < END, CronSim(expression, begin))
    found = utc(Cron(expression, zone).between(START, END))
    assert found == utc(expected)
    assert len(set(found)) == len(found) > 11


@pytest.mark.parametrize("zone", ZONES)
@settings(max_examples=15)
@given(data=st.data())
def test_a_named_time_fires_once_a_day_and_late_where_it_does_not_exist(zone: str, data: st.DataObject) -> None:
    hour, minute = data.draw(st.integers(0, 5)), data.draw(st.integers(0, 59))
    month, day = data.draw(st.sampled_from(CHANGES[zone]))
    midnight = datetime(2027, month, day, tzinfo=ZoneInfo(zone))
    wall = midnight.replace(hour=hour, minute=minute)
    # The oracle is the clock itself: the first minute that exists and is not before the named time.
    while wall.astimezone(UTC).astimezone(wall.tzinfo).replace(tzinfo=None) != wall.replace(tzinfo=None):
        wall += timedelta(minutes=1)
    found = list(Cron(f"{minute} {hour} * * *", zone).between(midnight, midnight + timedelta(days=1)))
    assert utc(found) == utc([wall])


EXPRESSIONS = st.builds(
    "{} {} {} * {}".format,
    st.sampled_from(["0", "59", "*/20", "5,40"]),
    st.sampled_from(["*", "1", "2", "1-3", "*/4"]),
    st.sampled_from(["*", "1", "28-31"]),
    st.sampled_from(["*", "0", "7", "MON-FRI"]),
)


@settings(max_examples=40)
@given(expression=EXPRESSIONS, zone=st.sampled_from(ZONES), seconds=st.integers(0, 365 * 86400), near=st.booleans())
def test_slots_are_the_same_from_wherever_they_are_counted(expression, zone, seconds, near) -> None:
    cron = Cron(expression, zone)
    month, day = CHANGES[zone][seconds % 2]
    moment = START + timedelta(seconds=seconds)
    if near:
        moment = datetime(2027, month, day, tzinfo=UTC) + timedelta(seconds=seconds % 43200)
    coming = cron.next(4, moment)
    assert utc(coming) == sorted(set(utc(coming)))
    assert coming[0].astimezone(UTC) > moment
    for first, second in itertools.pairwise(coming):
        assert utc(cron.next(1, first)) == utc([second])
        assert utc([cron.latest(first.astimezone(UTC) + timedelta(seconds=1))]) == utc([first])
    before = cron.latest(moment)
    assert before is not None and before.astimezone(UTC) <= moment
    assert utc(cron.next(1, before)) == utc(coming[:1])


def test_sunday_is_0_and_7_and_two_kinds_of_days_are_joined_by_or() -> None:
    days = [list(Cron(f"0 12 * * {day}").between(START, END)) for day in ("0", "7", "SUN")]
    assert days[0] == days[1] == days[2] and {slot.isoweekday() for slot in days[0]} == {7}
    either = list(Cron("0 12 13 * 5").between(START, END))
    assert {slot.day for slot in either if slot.isoweekday() != 5} == {13}
    assert len(either) > 52


@pytest.mark.parametrize(
    ("cron", "delivered", "slot"),
    [
        ("0 3 * * *", "2027-01-04T03:00:00", "2027-01-04T03:00:00"),
        ("0 3 * * *", "2027-01-04T02:59:59.800", "2027-01-04T03:00:00"),  # 200 ms early
        ("0 3 * * *", "2027-01-04T02:59:00", "2027-01-04T03:00:00"),
        ("0 3 * * *", "2027-01-04T02:58:59", "2027-01-03T03:00:00"),
        ("0 3 * * *", "2027-01-04T03:50:00", "2027-01-04T03:00:00"),  # 50 min late
        ("0 3 * * *", "2027-01-04T12:00:00", "2027-01-04T03:00:00"),  # a forced run
        # Less than half a period early counts only where slots are close.
        ("* * * * *", "2027-01-01T00:00:29", "2027-01-01T00:00:00"),
        ("* * * * *", "2027-01-01T00:00:31", "2027-01-01T00:01:00"),
    ],
)
def test_a_delivery_belongs_to_the_slot_that_it_is_for(cron: str, delivered: str, slot: str) -> None:
    assert Cron(cron).nearest(at(f"{delivered}+00:00")) == at(f"{slot}+00:00")


def test_an_instant_inside_a_clock_change_is_warned_of_with_the_nearest_safe_hour() -> None:
    safe = "(clock change). The nearest safe hour is 3: '30 3 * * *'."
    assert clock_changes.warnings(Cron("30 2 * * *", "Europe/Berlin"), START) == [
        f"2027-03-28 02:30 in Europe/Berlin does not exist: it fires at 03:00 {safe}",
        f"2027-10-31 02:30 in Europe/Berlin exists twice: it fires once {safe}",
    ]
    # The hour before the skipped one is the repeated one there.
    found = clock_changes.warnings(Cron("30 1 * * *", "America/New_York"), START)
    assert [text.rpartition("hour is ")[2] for text in found] == ["0: '30 0 * * *'."]
    # The last hour of a day can be the safe one, too.
    [spring, _] = clock_changes.warnings(Cron("30 22 * * *", "America/Nuuk"), datetime(2022, 1, 1, tzinfo=UTC))
    assert "2022-03-26 22:30 in America/Nuuk does not exist" in spring and "hour is 23: '30 23 * * *'" in spring
    for safe in ("30 3 * * *", "0 * * * *", "30 2 24 12 *"):
        assert clock_changes.warnings(Cron(safe, "Europe/Berlin"), START) == []


@pytest.mark.parametrize(
    ("expression", "zone", "sentences"),
    [
        ("0 3 * *", "UTC", ["found 4. Received: '0 3 * *'"]),
        ("@daily", "UTC", ["Did you mean '0 0 * * *'?"]),
        ("0 25 * * MO", "UTC", ["the hour field is wrong: '25'. Expected: 0 to 23", "the day-of-week field is wrong: 'MO'"]),
        ("0 3 * FEBRUARY *", "UTC", ["Did you mean 'FEB'?"]),
        ("0 0 30 2 *", "UTC", ["this never fires"]),
        ("0 3 * * 1", "europe/berlin", ["Received: 'europe/berlin'. Did you mean 'Europe/Berlin'?"]),
        ("0 3 * * 1", "New York", ["Did you mean 'America/New_York'?"]),
        ("61 3 * * 1", "Mars/Olympus", ["the minute field is wrong: '61'", "Received: 'Mars/Olympus'."]),
        ("0 3 * * 1", "../etc/passwd", ["unknown time zone"]),
    ],
)  # fmt: skip
def test_every_mistake_is_named_with_the_received_and_the_nearest_value(expression, zone, sentences) -> None:
    with pytest.raises(InputError) as caught:
        Cron(expression, zone)
    assert len(caught.value.problems) == len(sentences)
    for problem, sentence in zip(caught.value.problems, sentences, strict=True):
        assert sentence in problem and "Received" in problem


@pytest.mark.parametrize(
    ("expression", "sentence"),
    [
        ("0 0 3 * * 1", "six fields, but Cloud Scheduler has no seconds (use '0 3 * * 1')"),
        ("0 3 L * *", "'L': Cloud Scheduler has no last day"),
        ("0 3 LW * *", "'LW'"),
        ("0 3 * * 5L", "'5L'"),
        ("0 3 * * 5#2", "'5#2': Cloud Scheduler has no nth weekday"),
    ],
)
def test_an_expression_that_only_cronsim_knows_is_refused_for_a_service(expression: str, sentence: str) -> None:
    Cron(expression)
    with input_error("Received", sentence):
        check_portable(expression, "Cloud Scheduler")
    check_portable("0 3 1 JUL MON-FRI", "Cloud Scheduler")


FIRST, HOUR = datetime(2027, 1, 4, tzinfo=timezone.utc), 3600.0


def simulate(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = app.run(["schedule", "simulate", *words])
    return code, *capsys.readouterr()


def hours(overlap: str, *durations: float, missed: str = "skip", down: tuple[int, int] | None = None) -> str:
    """Simulate six hourly slots; say of each when it starts and ends, in hours, or why not."""
    spans = [tuple(FIRST + timedelta(hours=hour) for hour in down)] if down else []
    about = {"overlap": overlap, "missed": missed, "durations_s": [each * HOUR for each in durations], "down": spans}
    found = Simulation(cron=Cron("0 * * * *"), **about).run(FIRST, FIRST + timedelta(hours=6))

    def hour(moment: datetime | None) -> str:
        return "?" if moment is None else f"{(moment - FIRST) / timedelta(hours=1):g}"

    return ", ".join(f"{hour(each.starts)}-{hour(each.ends)}" if each.starts else each.reason for each in found)


@pytest.mark.parametrize(
    ("overlap", "expected"),
    [
        ("skip", "0-1.5, overlap, 2-3.5, overlap, 4-5.5, overlap"),
        ("allow", "0-1.5, 1-2.5, 2-3.5, 3-4.5, 4-5.5, 5-6.5"),
        ("replace", "0-1, 1-2, 2-3, 3-4, 4-5, 5-6.5"),
        ("queue", "0-1.5, 1.5-3, 3-4.5, 4.5-6, overlap: another slot waits, 6-7.5"),
    ],
)
def test_runs_that_are_longer_than_their_period(overlap: str, expected: str) -> None:
    assert hours(overlap, 1.5) == expected


def test_a_run_that_ends_at_the_next_slot_does_not_overlap_it() -> None:
    assert hours("skip", 1) == "0-1, 1-2, 2-3, 3-4, 4-5, 5-6"


def test_slots_without_a_server_are_missed_or_the_last_one_is_caught_up() -> None:
    assert hours("skip", 0.5, down=(1, 4)) == "0-0.5, missed, missed, missed, 4-4.5, 5-5.5"
    caught_up = hours("skip", 0.25, missed="catch_up_last", down=(2, 6))
    assert caught_up == "0-0.25, 1-1.25, missed, missed, missed, 6-6.25"
    # The slot after it waits for the catch-up run: both were wanted.
    caught_up = hours("skip", 2, missed="catch_up_last", down=(1, 3))
    assert caught_up == "0-2, missed, 3-5, 5-7, overlap: another slot waits, overlap"


@settings(max_examples=40)
@given(
    overlap=st.sampled_from(OVERLAPS),
    missed=st.sampled_from(MISSED),
    durations=st.lists(st.floats(0, 100 * HOUR), max_size=3),
    down=st.tuples(st.integers(0, 99), st.integers(0, 99)).map(sorted),
)
def test_each_slot_has_one_answer_and_only_allowed_runs_overlap(overlap, missed, durations, down) -> None:
    span = tuple(FIRST + timedelta(hours=hour) for hour in down)
    cron, end = Cron("0 */7 * * *"), FIRST + timedelta(hours=100)
    made = Simulation(cron=cron, overlap=overlap, missed=missed, durations_s=durations, down=[span])
    found = made.run(FIRST, end)
    assert [each.slot for each in found] == list(cron.between(FIRST, end))
    runs = [(each.starts, each.ends) for each in found if each.action == "fire"]
    assert all(each.reason and not each.starts for each in found if each.action == "skip")
    assert all(first is not None and last is not None and first <= last for first, last in runs)
    if overlap != "allow":
        assert all(one[1] <= other[0] for one, other in itertools.pairwise(runs))


def test_the_command_lists_each_slot_of_a_year_with_its_offset(capsys: pytest.CaptureFixture[str]) -> None:
    span = ("--from", "2027-01-01", "--to", "2028-01-01", "--json")
    code, out, _ = simulate(capsys, "--cron", "30 2 * * *", "--time-zone", "Europe/Berlin", *span)
    found = json.loads(out)
    assert code == 0 and len(found) == 365
    slots = [each["slot"] for each in found]
    assert slots[0] == "2027-01-01T02:30:00+01:00"
    assert "2027-03-28T03:00:00+02:00" in slots and "2027-10-31T02:30:00+02:00" in slots
    assert {each["action"] for each in found} == {"fire"}


def test_the_command_names_its_count_and_warns_of_clock_changes(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--cron", "30 2 * * *", "--time-zone", "Europe/Berlin", "--duration", "30h")
    code, out, said = simulate(capsys, *words, "--from", "2027-03-27", "--to", "2027-03-31T12:00")
    assert code == 0
    assert [line.split("\t")[:2] for line in out.splitlines()][:2] == [
        ["2027-03-27T02:30:00+01:00", "fire"], ["2027-03-28T03:00:00+02:00", "skip"],
    ]  # fmt: skip
    assert "02:30 in Europe/Berlin does not exist" in said
    assert "5 slots: 3 fire, 2 are skipped, 2 find an earlier run." in said


def test_all_mistakes_of_a_command_are_named_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, said = simulate(capsys, "--overlap", "ski", "--duration", "long", "--missed", "x", "--down", "2027")
    assert code == 2
    nearest = ("Did you mean 'skip'?", "Known: catch_up_last, skip.")
    for text in ("--cron is missing", "--duration", "--down: two dates", *nearest):
        assert text in said
    words = ("--cron", "0 3 * * 1", "--from", "2027-02-01", "--to")
    assert "--to must be after --from" in simulate(capsys, *words, "2027-01-01")[2]
    assert "--to: not a date. Received: 'soon'" in simulate(capsys, *words, "soon")[2]
    assert "Did you mean: podlift schedule simulate?" in (app.run(["schedule", "simulat"]), capsys.readouterr().err)[1]
