"""The instants of a cron expression: as unix cron and cronsim have them, also where clocks change."""

from __future__ import annotations

import itertools
from datetime import datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import needs

from sdk import InputError
from sdk.schedules import clock_changes
from sdk.schedules.slots import Cron, check_portable

needs("cronsim")
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

    expected = []
    for slot in CronSim(expression, START.astimezone(ZoneInfo(zone)) - timedelta(seconds=1)):
        if slot.astimezone(UTC) >= END:
            break
        expected.append(slot.astimezone(UTC))
    found = utc(Cron(expression, zone).between(START, END))
    assert found == expected
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
    moment = (
        datetime(2027, month, day, tzinfo=UTC) + timedelta(seconds=seconds % 43200)
        if near
        else START + timedelta(seconds=seconds)
    )
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
    with pytest.raises(InputError, match="Received") as caught:
        check_portable(expression, "Cloud Scheduler")
    assert sentence in str(caught.value)
    check_portable("0 3 1 JUL MON-FRI", "Cloud Scheduler")
