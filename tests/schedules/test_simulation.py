"""`podlift schedule simulate`: what would fire, be skipped and overlap, without running anything."""

from __future__ import annotations

import itertools
import json
from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import needs

from sdk.cli import app
from sdk.schedules.policy import MISSED, OVERLAPS
from sdk.schedules.simulation import Simulation
from sdk.schedules.slots import Cron

needs("cronsim")
START = datetime(2027, 1, 4, tzinfo=timezone.utc)
HOUR = 3600.0


def simulate(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = app.run(["schedule", "simulate", *words])
    return code, *capsys.readouterr()


def hours(overlap: str, *durations: float, missed: str = "skip", down: tuple[int, int] | None = None) -> str:
    """Simulate six hourly slots; say of each when it starts and ends, in hours, or why not."""
    spans = [tuple(START + timedelta(hours=hour) for hour in down)] if down else []
    found = Simulation(
        cron=Cron("0 * * * *"), overlap=overlap, missed=missed, durations_s=[each * HOUR for each in durations], down=spans,
    ).run(START, START + timedelta(hours=6))  # fmt: skip

    def hour(moment: datetime | None) -> str:
        return "?" if moment is None else f"{(moment - START) / timedelta(hours=1):g}"

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
    span = tuple(START + timedelta(hours=hour) for hour in down)
    cron, end = Cron("0 */7 * * *"), START + timedelta(hours=100)
    made = Simulation(cron=cron, overlap=overlap, missed=missed, durations_s=durations, down=[span])
    found = made.run(START, end)
    assert [each.slot for each in found] == list(cron.between(START, end))
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
    for text in (
        "--cron is missing",
        "Did you mean 'skip'?",
        "--duration",
        "Known: catch_up_last, skip.",
        "--down: two dates",
    ):
        assert text in said
    words = ("--cron", "0 3 * * 1", "--from", "2027-02-01", "--to")
    assert "--to must be after --from" in simulate(capsys, *words, "2027-01-01")[2]
    assert "--to: not a date. Received: 'soon'" in simulate(capsys, *words, "soon")[2]
    assert "Did you mean: podlift schedule simulate?" in (app.run(["schedule", "simulat"]), capsys.readouterr().err)[1]
