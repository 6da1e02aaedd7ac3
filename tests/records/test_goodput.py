"""The uses of the time of a run: the parts add up, whatever happened to its attempts and clocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sdk.clock import SystemClock
from sdk.job.layout import RunPaths
from sdk.records import recorder
from sdk.records.accounts import ACCOUNTED, PARTS, TaskAccount, account_of, recorded
from sdk.records.events import Event
from sdk.records.goodput import add_up
from sdk.records.recorder import PROGRESS, Recorder, accounts_of, read_events, read_position
from sdk.runtime.reporting import ProgressWriter
from sdk.status import Goodput

T = 1_000_000.0  # when the run was submitted


def at(time: float, kind: str, attempt: int = 0, source: str = "supervisor", **data: Any) -> Event:
    return Event(attempt=attempt, source=source, sequence=1, kind=kind, time=T + time, data=data)


def spent(begun: float, *, steps: int = 0, base: int = 0, asleep: float = 0.0, **parts: float) -> TaskAccount:
    about = {"part": "step" if steps else "start", "steps": steps, "reached": base + steps, "measures_input": True}
    seen = T + begun + sum(parts.values()) + asleep
    return TaskAccount(begun=T + begun, seen=seen, **about, **parts)  # type: ignore[arg-type]


def of(events: Sequence[Event], accounts: dict[int, TaskAccount], now: float, **options: Any) -> Goodput:
    found = add_up(events, accounts, task="chief-0", now=T + now, **{"supervised": True, **options})
    assert found is not None
    assert sum(found.parts.values()) == pytest.approx(found.total_s, abs=1e-4)
    return found


SUBMITTED = at(0, "submitted", source="client")
STARTED = [SUBMITTED, at(0, "attempt_started", 1)]


def test_a_run_without_failures_is_divided_into_its_activities() -> None:
    parts = {"start": 6, "compile": 2, "input_wait": 5, "step": 80, "checkpoint": 1, "evaluation": 3, "other": 1}
    events = [SUBMITTED, at(1, "attempt_started", 1), at(102, "final", state="SUCCEEDED")]
    found = of(events, {1: spent(3, steps=800, **parts)}, now=500)
    measured = {f"{part}_s": seconds for part, seconds in {**parts, "start": 9, "other": 2}.items()}
    assert found == Goodput(task="chief-0", total_s=102, **measured)
    assert found.goodput == pytest.approx(80 / 102)


def test_steps_that_are_done_again_and_the_way_back_to_them_are_lost() -> None:
    again = [at(62, "restarting", 1), at(63, "attempt_started", 2), at(130, "final", state="SUCCEEDED")]
    first = spent(0, start=9, compile=1, input_wait=10, step=40, steps=100)
    second = spent(63, start=6, compile=1, step=60, steps=120, base=75)
    found = of([*STARTED, *again], {1: first, 2: second}, now=130)
    assert found.steps_lost == 25  # a quarter of the first attempt's
    assert (found.step_s, found.input_wait_s) == (40 * 0.75 + 60, 10 * 0.75)
    # Besides the steps: 2 s until the end of the attempt was noticed, 1 s between them, 7 s until the second one trains.
    assert found.lost_to_failures_s == pytest.approx(12.5 + 2 + 1 + 7)
    assert (found.start_s, found.compile_s, found.total_s) == (9, 1, 130)


def test_an_attempt_that_falls_back_further_takes_the_steps_of_all_before_it() -> None:
    started = [at(100 * number, "attempt_started", number + 1) for number in range(3)]
    events = [SUBMITTED, *started, at(300, "final", state="SUCCEEDED")]
    accounts = {
        1: spent(0, step=100, steps=100),
        2: spent(100, step=100, steps=100, base=80),
        3: spent(200, step=100, steps=100, base=50),  # an older checkpoint, as after a damaged one
    }
    found = of(events, accounts, now=300)
    assert (found.steps_lost, found.step_s) == (50 + 100, 50 + 0 + 100)


def test_attempts_without_a_step_are_lost_and_an_untrained_restart_takes_no_steps() -> None:
    events = [*STARTED, at(50, "restarting", 1), at(51, "attempt_started", 2)]
    found = of(events, {1: spent(0, start=10, step=40, steps=40), 2: spent(52, start=3)}, now=60)
    assert (found.steps_lost, found.step_s, found.lost_to_failures_s) == (0, 40, 10)
    first = [*STARTED, at(10, "restarting", 1), at(11, "attempt_started", 2)]
    found = of(first, {1: spent(0, start=6, compile=4), 2: spent(11, start=4, step=20, steps=9)}, now=35)
    assert (found.start_s, found.compile_s, found.lost_to_failures_s, found.step_s) == (0, 0, 15, 20)
    again = [*events, at(60, "restarting", 2), at(60, "attempt_started", 3), at(70, "restarting", 3)]
    found = of(again, {1: spent(0, start=10, step=40, steps=40), 3: spent(60, start=10)}, now=75)
    assert (found.step_s, found.start_s, found.lost_to_failures_s, found.total_s) == (40, 10, 25, 75)


def test_the_time_between_an_end_and_a_resume_is_idle_and_its_start_is_a_start() -> None:
    resumed = [at(1040, "resumed", source="client-1", attempts=1), at(1042, "attempt_started", 2)]
    end = at(1100, "final", source="supervisor-1", state="SUCCEEDED")
    events = [*STARTED, at(40, "final", state="CANCELLED"), *resumed, end]
    accounts = {1: spent(0, start=10, step=30, steps=30), 2: spent(1042, start=8, step=50, steps=50, base=30)}
    found = of(events, accounts, now=2000)
    assert (found.idle_s, found.start_s, found.step_s, found.lost_to_failures_s) == (1000, 20, 80, 0)
    assert found.total_s == 1100


def test_an_attempt_without_an_account_is_a_start_until_it_is_over() -> None:
    resumed = [at(1040, "resumed", source="client-1", attempts=1), at(1042, "attempt_started", 2)]
    events = [*STARTED, at(40, "final", state="CANCELLED"), *resumed]
    accounts = {1: spent(0, start=10, step=30, steps=30)}
    found = of(events, accounts, now=1050)
    assert (found.start_s, found.other_s) == (20, 0)
    found = of([*events, at(1050, "final", source="supervisor-1", state="CANCELLED")], accounts, now=2000)
    assert (found.start_s, found.other_s) == (12, 8)


def test_a_clock_that_is_slow_takes_no_time_from_another_attempt() -> None:
    events = [*STARTED, at(50, "restarting", 1), at(49.5, "attempt_started", 2)]
    found = of(events, {1: spent(0, start=10, step=40, steps=40), 2: spent(49.5, start=3)}, now=60)
    assert (found.step_s, found.lost_to_failures_s) == (40, 10.5)


def test_the_present_activity_counts_as_its_part_and_unmeasured_input_wait_as_steps() -> None:
    account = replace(spent(0, start=10, step=50, steps=50), part="evaluation")
    assert of(STARTED, {1: account}, now=90).evaluation_s == 30
    account = replace(spent(0, step=20, input_wait=7, steps=9), measures_input=False)
    for part in ("step", "input_wait"):
        found = of(STARTED, {1: replace(account, part=part)}, now=30)
        assert (found.step_s, found.input_wait_s) == (30, None)


def test_the_sleep_of_a_laptop_and_a_wait_for_machines_are_idle_and_a_hang_is_lost() -> None:
    events = [SUBMITTED, at(600, "attempt_started", 1)]
    found = of(events, {1: spent(601, start=9, step=20, steps=9)}, now=640, waits_for_machines=True)
    assert (found.idle_s, found.start_s, found.step_s) == (600, 10, 30)
    slept = {1: spent(0, start=10, step=50, steps=50, asleep=3600)}
    assert of(STARTED, slept, now=3660).idle_s == 3600
    more = at(700, "final", state="CHECKPOINTED", continues=True, number=1)
    for end in (at(700, "restarting", 1), at(700, "final", state="FAILED"), more):
        found = of([*STARTED, end], {1: spent(0, start=10, step=50, steps=50)}, now=700)
        assert (found.step_s, found.lost_to_failures_s) == (50, 640)


def test_a_supervisor_that_was_killed_ends_its_attempt_with_the_last_sign_of_life() -> None:
    accounts = {1: spent(0, start=10, step=50, steps=50)}
    assert of(STARTED, accounts, now=9000, supervised=False).total_s == 60
    resumed = [*STARTED, at(5000, "resumed", source="client-1", attempts=1), at(5000, "attempt_started", 2)]
    found = of(resumed, {**accounts, 2: spent(5000, start=5, step=5, steps=5, base=50)}, now=5010)
    assert (found.idle_s, found.start_s, found.step_s) == (4940, 15, 55)


def test_a_run_of_an_earlier_podlift_has_no_goodput(tmp_path: Path) -> None:
    events = [*STARTED, at(50, "final", state="SUCCEEDED")]
    assert add_up(events, {}, task="chief-0", now=T, supervised=False) is None
    old = tmp_path / "chief-0"
    old.write_bytes(PROGRESS.pack(7, 9, 0, 0, 0, 0))
    assert recorder.read_account(str(old)) is None and recorder.read_progress(str(old)) == (7, 9)
    assert recorder.read_account(str(tmp_path / "none")) is read_position(str(tmp_path / "none")) is None


@pytest.mark.parametrize(
    "damage", [None, 7, {}, {"begun": "x"}, {"step": float("nan")}, {"step": -1.0}, {"part": "lunch"}, {"steps": -1}]
)
def test_a_damaged_account_is_as_good_as_none(damage: Any) -> None:
    whole = {"begun": 1.0, "seen": 2.0, "part": "step", "steps": 1, "reached": 1, "measures_input": True, "step": 1.0}
    assert account_of(whole) is not None
    damaged = {**whole, **damage} if damage and isinstance(damage, dict) else damage
    assert account_of(damaged) is None
    assert recorded([at(1, ACCOUNTED, 1, tasks={"chief-0": damaged}), at(1, ACCOUNTED, 2, tasks=5)], "chief-0") == {}


def test_the_account_in_a_record_has_priority_and_a_file_serves_where_there_is_none(tmp_path: Path) -> None:
    paths = RunPaths(str(tmp_path / "run"))
    for attempt in (1, 2):
        writer = ProgressWriter(paths.progress(attempt, "chief-0"))
        writer.begin(10 * attempt)
        writer.step()
        Recorder(paths, "chief-0", attempt, SystemClock()).record("entry")
    assert {n: a.reached for n, a in accounts_of(paths, read_events(paths), "chief-0").items()} == {1: 11, 2: 21}
    kept = {"begun": 1.0, "seen": 2.0, "part": "step", "steps": 5, "reached": 99, "measures_input": True}
    Recorder(paths, "supervisor", 1, SystemClock()).record(ACCOUNTED, tasks={"chief-0": kept})
    assert {n: a.reached for n, a in accounts_of(paths, read_events(paths), "chief-0").items()} == {1: 99, 2: 21}
    position = read_position(paths.progress(2, "chief-0"))
    assert position is not None and position.step == 21


# --- Whatever happens, the parts add up -------------------------------------------------------------------------------

seconds = st.floats(0, 1e6, allow_nan=False)
wall = st.floats(0, 1e9, allow_nan=False)  # a clock may jump
counts = {"steps": st.integers(0, 10_000), "reached": st.integers(0, 20_000), "measures_input": st.booleans()}
parts = {"part": st.sampled_from(PARTS), **dict.fromkeys(PARTS, seconds)}
accounts = st.builds(TaskAccount, begun=wall, seen=wall, **counts, **parts)
KINDS = "submitted attempt_started entry restarting attempt_ended resumed task_restarting exited final"
SOURCES = "client supervisor supervisor-1 chief-0 client-1"
known = {"state": st.sampled_from(["SUCCEEDED", "FAILED", "CANCELLED", "CHECKPOINTED"]), "attempts": st.integers(0, 4)}
more = {"continues": st.just(True), "task": st.just("chief-0"), "number": st.just(1)}
who = {"source": st.sampled_from(SOURCES.split()), "attempt": st.integers(0, 4), "sequence": st.integers(1, 9)}
what = {"kind": st.sampled_from(KINDS.split()), "data": st.fixed_dictionaries(known, optional=more)}
records = st.builds(Event, time=wall, **who, **what)


# The last count found a task waiting for input, which turned out to be impossible to measure.
NOTHING = TaskAccount(begun=0.0, seen=0.0, part="start", steps=0, reached=0, measures_input=False)
BEGUN = Event(attempt=4, source="client", sequence=1, kind="submitted", time=0.0, data={})


@settings(max_examples=120, deadline=None)
@example([BEGUN], {1: NOTHING, 4: replace(NOTHING, part="input_wait")}, 1.0, True, False)
@given(st.lists(records, max_size=12), st.dictionaries(st.integers(1, 4), accounts), wall, st.booleans(), st.booleans())
def test_the_parts_add_up_whatever_the_records_and_the_clocks_say(events, found, now, supervised, cloud) -> None:
    known = add_up(events, found, task="chief-0", now=now, supervised=supervised, waits_for_machines=cloud)
    if known is None:
        return
    assert all(part >= 0 for part in known.parts.values())
    assert sum(known.parts.values()) == pytest.approx(known.total_s, rel=1e-9, abs=1e-4)
    assert known.communication_s is None and 0 <= known.goodput <= 1


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Event], dict[int, TaskAccount], float]:
    """A run of several attempts with right clocks."""
    time, base = draw(st.floats(0, 100)), 0
    events, kept = [SUBMITTED], {}
    count = draw(st.integers(1, 5))
    for number in range(1, count + 1):
        begun = time
        events.append(at(begun, "attempt_started", number))
        if draw(st.booleans()):
            parts = {part: draw(st.floats(0, 1000)) for part in PARTS}
            steps, late, asleep = draw(st.integers(0, 500)), draw(st.floats(0, 9)), draw(st.floats(0, 99))
            kept[number] = spent(begun + late, steps=steps, base=base, asleep=asleep, **parts)
            time = kept[number].seen - T
            base += draw(st.integers(0, steps))
        time += draw(st.floats(0, 50))
        if number < count:
            resumed = draw(st.booleans())
            events.append(at(time, "final", state="CANCELLED") if resumed else at(time, "restarting", number))
            time += draw(st.floats(0.001, 500))  # a run that has ended is resumed later
            events += [at(time, "resumed", source=f"client-{number}", attempts=number)] if resumed else []
            time += draw(st.floats(0, 60))
    end = draw(st.sampled_from(["SUCCEEDED", "FAILED", "CANCELLED", ""]))
    return [*events, at(time, "final", state=end)] if end else events, kept, time


@settings(max_examples=80, deadline=None)
@given(histories(), st.booleans())
def test_with_sound_clocks_the_whole_is_the_time_from_the_submit_to_the_end(history, cloud) -> None:
    events, kept, end = history
    if kept:
        found = of(events, kept, now=end, waits_for_machines=cloud)
        assert found.total_s == pytest.approx(end, rel=1e-6, abs=1e-3)
