from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sdk.clock import SystemClock
from sdk.job.layout import RunPaths
from sdk.records.events import Event, fold, parse, status_records
from sdk.records.recorder import Recorder, read_events
from sdk.status import Reason, State


def event(kind: str, time: float = 1.0, source: str = "supervisor", attempt: int = 0, **data: object) -> Event:
    return Event(attempt=attempt, source=source, sequence=1, kind=kind, time=time, data=data)


def ended(state: str, reason: str, time: float = 4.0, source: str = "supervisor") -> Event:
    return event("final", time, source, state=state, reason=reason, failure=None)


SUBMITTED = event("submitted", 1.0, "client")
STARTED = event("started", 2.0, supervisor="x")
STOPPING = event("stopping", 3.0)
FINAL = ended("SUCCEEDED", "done")


@pytest.mark.parametrize(
    ("events", "alive", "state", "reason", "exit_code"),
    [
        ([SUBMITTED], True, State.PENDING, Reason.SUBMITTED, None),
        ([SUBMITTED], False, State.LOST, Reason.SUPERVISOR_LOST, 3),
        ([SUBMITTED, STARTED], True, State.RUNNING, Reason.TRAINING, None),
        ([SUBMITTED, STARTED, STOPPING], True, State.RUNNING, Reason.STOPPING, None),
        ([SUBMITTED, STARTED, STOPPING, FINAL], False, State.SUCCEEDED, Reason.DONE, 0),
        ([SUBMITTED, ended("FAILED", "user_error")], False, State.FAILED, Reason.USER_ERROR, 1),
        ([SUBMITTED, ended("FAILED", "killed")], False, State.FAILED, Reason.KILLED, 3),
        ([SUBMITTED, ended("CANCELLED", "cancelled")], False, State.CANCELLED, Reason.CANCELLED, 4),
        ([SUBMITTED, ended("CHECKPOINTED", "checkpointed")], False, State.CHECKPOINTED, Reason.CHECKPOINTED, 75),
    ],
)
def test_records_say_how_a_run_is_doing_in_whatever_order_they_are_found(
    events: list[Event], alive: bool, state: State, reason: Reason, exit_code: int | None
) -> None:
    for order in itertools.permutations(events):
        status = fold(order, supervisor_alive=alive)
        assert (status.state, status.reason, status.exit_code) == (state, reason, exit_code)


NUMBERS = {"attempt": st.integers(0, 9999), "sequence": st.integers(0, 999999), "time": st.floats(0, 2e9)}
SOURCES = st.sampled_from(["client", "supervisor", "chief-0", "worker-12"])
WHAT = {"kind": st.sampled_from(["entry", "first_step"]), "data": st.dictionaries(st.text(), st.integers() | st.text())}


@given(st.builds(Event, source=SOURCES, **WHAT, **NUMBERS))
def test_a_record_reads_back_as_it_was_written(record: Event) -> None:
    name = f"{record.attempt:04d}.{record.source}.{record.sequence:06d}.{record.kind}.json"
    assert parse(name, record.to_json()) == record


def test_records_are_numbered_without_gaps_also_by_a_process_that_continues(tmp_path: Path) -> None:
    for continued in (False, True):
        recorder = Recorder(RunPaths(str(tmp_path)), "chief-0", 1, SystemClock(), continued=continued)
        recorder.record("entry")
        recorder.record("done")
    assert sorted(each.sequence for each in read_events(RunPaths(str(tmp_path)))) == [1, 2, 3, 4]


TASK_KINDS = st.lists(st.sampled_from(["entry", "first_step", "failed", "done", "result"]), unique=True)


@given(st.lists(st.tuples(TASK_KINDS, TASK_KINDS, st.booleans()), max_size=6), st.booleans())
def test_a_status_needs_few_of_the_records_of_many_attempts(attempts: list, alive: bool) -> None:
    records, now = {}, 1.0
    for number, (chief, worker, stopping) in enumerate([([], [], False), *attempts]):
        own = [("client", "submitted"), ("supervisor", "started")] if number == 0 else []
        own += [("chief-0", kind) for kind in chief] + [("worker-0", kind) for kind in worker]
        own += [("supervisor", "attempt_started"), ("supervisor", "exited")] if number else []
        for sequence, (source, kind) in enumerate([*own, *([("supervisor", "stopping")] if stopping else [])], 1):
            now += 1
            name = f"{number:04d}.{source}.{sequence:06d}.{kind}.json"
            data = {"value": now} if kind == "result" else {}
            records[name] = Event(attempt=number, source=source, sequence=sequence, kind=kind, time=now, data=data)
    few = status_records(list(records))
    found, whole = [records[name] for name in few], list(records.values())
    assert fold(found, supervisor_alive=alive) == fold(whole, supervisor_alive=alive)
    assert status_records([*few, "strange"]) == ["strange", *few]


@given(st.binary() | st.text().map(str.encode))
@example(b'{"version": 1, "time": 1e300, "data": {"supervisor": "x"}}')
@example(b'{"version": 1, "time": -1, "data": {"supervisor": "x"}}')
def test_foreign_bytes_are_no_record(data: bytes) -> None:
    with pytest.raises(ValueError):
        parse("0001.client.000001.started.json", data)


def test_a_run_that_was_resumed_has_not_finished_where_it_did_before() -> None:
    resumed = event("resumed", 9.0, "client-1", attempts=0, cancel_requests=0)
    last = ended("SUCCEEDED", "done", 12.0, "supervisor-1")
    history = [SUBMITTED, ended("CANCELLED", "cancelled", 5.0), resumed, last]
    finished = [fold(history[:count], supervisor_alive=True).timings.get("finished") for count in (2, 3, 4)]
    assert finished == [4.0, None, 11.0]
