"""The list of runs: quick where runs have ended, right whatever lies there."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import SHORT, finished_run

import sdk
from sdk.clock import SystemClock
from sdk.job.layout import RunPaths
from sdk.records import summaries
from sdk.records.events import Event, fold
from sdk.records.recorder import Recorder

texts = st.text(max_size=50)
failure = st.fixed_dictionaries({"task": SHORT, "message": texts, "traceback": texts, "log": st.just("x")})
states, reasons = [state.value for state in sdk.State if state.terminal], [reason.value for reason in sdk.Reason]
verdict = {"state": st.sampled_from(states), "reason": st.sampled_from(reasons), "failure": st.none() | failure}
finals = st.fixed_dictionaries(verdict)
kinds = st.sampled_from(["submitted", "entry", "first_step", "stopping", "failed", "exited"])
who = {"source": st.sampled_from(["client", "chief-0", "worker-12"]), "sequence": st.integers(1, 99)}
data = st.dictionaries(SHORT, st.integers() | SHORT)
records = st.builds(Event, attempt=st.integers(0, 3), kind=kinds, time=st.floats(0, 2e9), data=data, **who)
values = st.recursive(st.none() | st.integers() | SHORT, lambda inner: st.lists(inner, max_size=3))


@pytest.fixture
def make(root: Path):
    """Make a run that has ended, with its summary: `make("a")`."""

    def maker(letter: str, *, summary: bool = True) -> RunPaths:
        paths = finished_run(root, f"{letter}-aaaaaa")
        if summary:
            summaries.write(paths)
            assert os.path.exists(paths.summary)
        return paths

    return maker


def listed() -> dict[str, sdk.RunInfo]:
    return {info.id: info for info in sdk.runs(limit=None)}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(st.lists(records, max_size=8), finals, values)
def test_the_summary_of_a_run_agrees_with_its_records(tmp_path_factory, events, final: dict, value: object) -> None:
    paths = RunPaths(str(tmp_path_factory.mktemp("runs") / "digits-aaaaaa"))
    end = Event(attempt=0, source="supervisor", sequence=1, kind="final", time=3.0, data=final)
    result = Event(attempt=1, source="chief-1", sequence=1, kind="result", time=3.0, data={"value": value})
    events = [*events, end, result]
    os.makedirs(paths.events)
    for event in events:
        Path(paths.event(event.attempt, event.source, event.sequence, event.kind)).write_bytes(event.to_json())
    summaries.write(paths)
    kept = {(event.attempt, event.source, event.sequence, event.kind): event for event in events}
    expected = fold(list(kept.values()), supervisor_alive=False)
    found = summaries.read(paths)
    assert (found and found.status) == (None if expected.state is sdk.State.LOST else expected)


def test_a_run_is_listed_as_its_records_say_with_a_summary_and_without(make) -> None:
    quick, slow = make("a"), make("b", summary=False)
    found = listed()
    assert found["a-aaaaaa"].status == sdk.attach(quick.url).status()
    assert found["b-aaaaaa"].status == sdk.attach(slow.url).status()
    assert found["a-aaaaaa"].status.state is sdk.State.SUCCEEDED


def test_a_summary_is_worthless_once_the_records_have_changed(make) -> None:
    added, foreign, removed = make("a"), make("b"), make("c")
    Recorder(added, "supervisor", 2, SystemClock()).record("attempt_started")
    Path(foreign.events, "notes.txt").write_text("x")
    next(Path(removed.events).glob("*.final.json")).unlink()
    found = listed()
    assert found["a-aaaaaa"].status.attempts == 2
    assert "notes.txt" in found["b-aaaaaa"].problem
    assert not found["c-aaaaaa"].status.state.terminal


def test_a_run_that_was_resumed_is_summed_up_anew(make) -> None:
    paths = make("a")
    Recorder(paths, "client-1", 0, SystemClock()).record("resumed", attempts=1, cancel_requests=0)
    assert summaries.read(paths) is None
    Recorder(paths, "supervisor-1", 0, SystemClock()).record("final", state="CANCELLED", reason="cancelled")
    assert summaries.read(paths) is None
    summaries.write(paths)
    found = summaries.read(paths)
    assert found is not None and found.status == sdk.attach(paths.url).status()
    assert listed()["a-aaaaaa"].status.state is sdk.State.CANCELLED


@pytest.mark.parametrize("content", ["", "{", "5", "[" * 100_000, '{"version": 1}', '{"version": 99}', "a later one"])
def test_a_summary_that_is_damaged_or_has_an_unknown_field_is_none(make, content: str) -> None:
    paths = make("a")
    data = json.loads(Path(paths.summary).read_text())
    data["status"] |= {"state": "FAILED", "mood": "good"}
    Path(paths.summary).write_text(json.dumps(data) if content == "a later one" else content)
    assert listed()["a-aaaaaa"].status.state is sdk.State.SUCCEEDED


def test_a_copy_under_another_name_is_no_run_for_its_summary_either(make) -> None:
    paths = make("a")
    copy = Path(paths.url).with_name("b-aaaaaa")
    shutil.copytree(paths.url, copy)
    shutil.copystat(paths.events, copy / "events")
    assert "holds the run 'a-aaaaaa'" in listed()["b-aaaaaa"].problem


def test_a_folder_that_is_no_run_is_listed_with_its_problem_and_hides_no_other(make, root: Path) -> None:
    make("good")
    folder = root / "runs"
    for name in ("pipe", "folder", "nothing", "empty"):
        (folder / name).mkdir()
    os.mkfifo(folder / "pipe" / "plan.json")
    (folder / "folder" / "plan.json").mkdir()
    (folder / "empty" / "plan.json").touch()
    (folder / "loop").symlink_to(folder / "loop")
    (folder / "file").touch()
    os.mkfifo(Path(make("piped", summary=False).events) / "0001.chief-0.000009.failed.json")
    found = listed()
    assert set(found) == {"good-aaaaaa", "piped-aaaaaa", "pipe", "folder", "nothing", "empty"}
    assert found.pop("good-aaaaaa").status is not None
    piped = found.pop("piped-aaaaaa").status
    assert piped is not None and "is not a file" in " ".join(piped.findings)
    assert {name: info.status for name, info in found.items()} == dict.fromkeys(found)
    assert "is not a file" in found["pipe"].problem


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is closed to root")
def test_a_closed_folder_is_listed_and_a_closed_root_is_said(make, root: Path) -> None:
    paths = make("closed")
    os.chmod(paths.url, 0)
    assert "Permission denied" in listed()["closed-aaaaaa"].problem
    os.chmod(paths.url, 0o700)
    os.chmod(root / "runs", 0)
    with pytest.raises(sdk.InputError, match="Permission denied"):
        listed()
    os.chmod(root / "runs", 0o700)


def test_a_summary_has_the_best_value_the_shape_and_the_pace_of_the_main_metric(make) -> None:
    paths = make("a", summary=False)
    # Of a loss, neither NaN nor a truth value is one.
    losses = [5.0, float("nan"), 4.0, True, None, 1.0, 3.0]
    values = [{"loss": loss, "acc": step / 10} for step, loss in enumerate(losses, 1)]
    records = [{"time": 100.0 + 2 * at, "step": at, "epoch": 1, "metrics": each} for at, each in enumerate(values, 1)]
    place = Path(paths.metrics(1, "chief-0"))
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text("".join(json.dumps(record) + "\n" for record in records))
    summaries.write(paths)
    found = summaries.read(paths)
    assert found is not None
    about = found.shown
    assert (about.metric, about.metrics["loss"], about.best, about.curve) == ("loss", 3.0, 1.0, "zq-0i")
    assert (about.steps, about.rate, about.tasks, about.accelerator, about.entry) == (7, 0.5, 2, "cpu", "train.py")
    # A later one replaces it; of a metric that nobody has chosen, the name says which value is the best.
    place.write_text("".join(json.dumps({**record, "metrics": {"acc": record["step"]}}) + "\n" for record in records))
    summaries.write(paths)
    found = summaries.read(paths)
    assert found is not None and (found.shown.metric, found.shown.best) == ("acc", 7)
    # Additions of a later podlift are small, whatever the run has.
    assert len(summaries.shape([float(value) for value in range(100_000)])) == 40
    assert summaries.shape([7.0, 7.0]) == "ii"
    assert [summaries.shape([]), summaries.shape([None, None])] == ["", "--"]
    assert summaries.shape([1e308, -1e308, 0.0]) == "z0i"


def test_a_summary_has_the_first_thirty_arguments_and_the_beginning_of_long_ones(make) -> None:
    paths = make("a", summary=False)
    plan = json.loads(Path(paths.plan).read_text())
    plan["job"]["args"] = {
        **{f"name{number}": number for number in range(28)},
        "text": "x" * 100,
        "long": "x" * 101,
        "z": 1,
    }
    Path(paths.plan).write_text(json.dumps(plan))
    kept = summaries.columns_of(paths).args
    assert [*kept] == [*plan["job"]["args"]][:30]
    assert (kept["text"], kept["long"]) == ("x" * 100, "x" * 100 + "...")


def test_a_summary_omits_usual_values_and_the_rows_share_no_mutable_value(make) -> None:
    first, second = make("a"), make("b")
    told = json.loads(Path(first.summary).read_text())
    whole = asdict(summaries.columns_of(first))
    usual = asdict(summaries.Shown())
    assert told["shown"] == {name: value for name, value in whole.items() if value != usual[name]}
    rows = listed()
    # One with every field.
    Path(second.summary).write_text(json.dumps({**json.loads(Path(second.summary).read_text()), "shown": whole}))
    assert listed() == rows
    bare = {**told, "shown": {}}
    for paths in (first, second):
        run_id, changed = paths.run_id, os.stat(paths.events).st_mtime_ns
        Path(paths.summary).write_text(json.dumps({**bare, "run_id": run_id, "records_changed_ns": changed}))
    one, other = listed().values()
    assert (one.metrics, one.labels, one.steps, one.left_s, one.problem) == ({}, [], None, None, "")
    assert one.metrics is not other.metrics and one.labels is not other.labels
    Path(first.summary).write_text(json.dumps({**told, "shown": {"unknown": 1}}))
    assert {each.id: each.entry for each in listed().values()}[first.run_id] == whole["entry"]
