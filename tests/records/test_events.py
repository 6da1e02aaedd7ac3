"""Records and metrics of a run; a file that was read before is read like a new one, whatever was done to it."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sdk.clock import SystemClock
from sdk.errors import CorruptRunError
from sdk.job.layout import RunPaths
from sdk.records import metric_file
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


def test_findings_are_those_of_the_last_attempt_and_remarks_are_kept() -> None:
    found = [event("finding", 3.0, attempt=attempt, text=f"finding {attempt}") for attempt in (1, 2)]
    remark = event("damaged", 3.5, attempt=1, text="remark")
    started = [event("attempt_started", float(attempt), attempt=attempt) for attempt in (1, 2)]
    status = fold([SUBMITTED, STARTED, *started, *found, remark], supervisor_alive=True)
    assert status.findings == ("finding 2", "remark")


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


LINE = b'{"time": 1.5, "step": 7, "metrics": {"loss": 0.5}}\n'


def fresh(path: Path) -> list[dict] | str:
    metric_file._read_parts.clear()
    return found(path)


def found(path: Path) -> list[dict] | str:
    try:
        return metric_file.read_metrics(str(path))
    except CorruptRunError as error:
        return str(error)


# The effects of writers, copies and damage on a file: add to it, write it anew in place, replace it, cut it, remove it.
PARTS = st.sampled_from([LINE, LINE.replace(b"7", b"8"), LINE[:20], LINE[20:], b"\n", b"[]\n", b"{}"])
WRITES = st.tuples(st.sampled_from(["add", "rewrite", "replace"]), st.lists(PARTS, max_size=6).map(b"".join))
CUTS = st.tuples(st.just("cut"), st.integers(0, 300))
CHANGES = st.lists(WRITES | CUTS | st.just(("remove", None)), max_size=6)


def change(path: Path, how: str, what) -> None:
    if how == "add":
        with path.open("ab") as file:
            file.write(what)
    elif how == "rewrite":
        path.write_bytes(what)
    elif how == "replace":
        other = path.with_name("other")
        other.write_bytes(what)
        other.replace(path)
    elif how == "cut" and path.exists():
        os.truncate(path, min(what, path.stat().st_size))
    elif how == "remove":
        path.unlink(missing_ok=True)


@given(changes=CHANGES)
def test_a_file_that_was_read_before_is_read_like_a_new_one(tmp_path_factory, changes) -> None:
    path = tmp_path_factory.mktemp("records") / "chief-0.jsonl"
    kept = metric_file._RECORDS
    metric_file._RECORDS = 1
    try:
        metric_file._read_parts.clear()
        for how, what in changes:
            change(path, how, what)
            known = dict(metric_file._read_parts)
            expected = fresh(path)
            metric_file._read_parts.update(known)
            assert found(path) == expected
    finally:
        metric_file._RECORDS = kept


def test_only_new_lines_are_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, parsed = tmp_path / "chief-0.jsonl", list[bytes]()
    monkeypatch.setattr(metric_file.json, "loads", lambda line, loads=json.loads: parsed.append(line) or loads(line))
    path.write_bytes(LINE * 1000 + LINE[:10])
    assert len(found(path)) == len(parsed) == 1000
    change(path, "add", LINE[10:] + LINE)
    assert len(found(path)) == len(parsed) == 1002
    found(path).clear()
    assert len(found(path)) == 1002


def test_few_files_are_remembered_and_damage_is_named_by_its_line_in_the_whole_file(tmp_path: Path) -> None:
    metric_file._read_parts.clear()
    for number in range(10):
        (tmp_path / f"{number}").write_bytes(LINE * 1000)
        found(tmp_path / f"{number}")
    assert list(metric_file._read_parts) == [str(tmp_path / f"{number}") for number in range(6, 10)]
    change(tmp_path / "9", "add", b"{}\n")
    assert "is damaged in line 1001" in str(found(tmp_path / "9"))
