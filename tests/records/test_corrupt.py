"""Damage of every sort to a run directory: one sentence, never a traceback, and nothing is repaired by guessing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from support import FINISHED_RUN, finished_run

import sdk


def plan_with(**changes: object) -> Callable[[Path], None]:
    def damage(run: Path) -> None:
        data = json.loads((run / "plan.json").read_text())
        (run / "plan.json").write_text(json.dumps({**data, **changes}))

    return damage


def file_with(name: str, content: str) -> Callable[[Path], None]:
    return lambda run: (run / name).write_text(content) and None


def metrics_with(content: str) -> Callable[[Path], None]:
    return file_with("attempts/0001/metrics/chief-0.jsonl", content + "\n")


DAMAGE: dict[str, Callable[[Path], object]] = {
    "backend of a wrong type": plan_with(backend=5),
    "another run's id": plan_with(run_id="other-aaaaaa"),
    "deeply nested": file_with("plan.json", "[" * 100_000),
    "records gone": lambda run: shutil.rmtree(run / "events"),
    "records that are a file": lambda run: (shutil.rmtree(run / "events"), (run / "events").write_text("x")),
    "a record without its data": file_with(
        "events/0000.supervisor.000001.started.json", '{"version":1,"time":1,"data":{}}'
    ),
    "metrics that are a number": metrics_with("5"),
    "metrics that are no table": metrics_with('{"metrics": 5}'),
    "metrics that are no JSON": metrics_with("{"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_reported_and_the_other_runs_stay_readable(tmp_path: Path, name: str) -> None:
    broken, whole = (Path(finished_run(tmp_path, run).url) for run in (FINISHED_RUN.name, "whole-aaaaaa"))
    DAMAGE[name](broken)
    before = {path: path.read_bytes() for path in broken.rglob("*") if path.is_file()}
    with pytest.raises(sdk.InputError):
        run = sdk.attach(broken)
        run.status()
        run.metrics()
    assert {path: path.read_bytes() for path in broken.rglob("*") if path.is_file()} == before
    listed = {info.id: info for info in sdk.runs(root=tmp_path)}
    assert listed[whole.name].status is not None
    assert listed[whole.name].status.state is sdk.State.SUCCEEDED


FINAL = "0000.supervisor.000003.final.json"


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        (FINAL, b"", "damaged"),
        (FINAL, b'{"version": 7}', "version 1"),
        (FINAL, b'{"version": 1, "time": 1, "data": {}}', "has no verdict"),
        (FINAL, b'{"version":1,"time":1,"data":{"state":"ODD","reason":"done"}}', "has no verdict"),
        (FINAL, b'{"version":1,"time":-0.5,"data":{"state":"SUCCEEDED","reason":"done"}}', "damaged"),
    ],
)
def test_a_damaged_verdict_is_reported_with_its_file_and_not_repaired(tmp_path, name: str, content, said: str) -> None:
    file = Path(finished_run(tmp_path).url) / "events" / name
    file.write_bytes(content)
    run = sdk.attach(file.parents[1])
    for look in (run.status, run.why):
        with pytest.raises(sdk.CorruptRunError, match=said) as caught:
            look()
        assert str(file) in str(caught.value)
    assert file.read_bytes() == content
    (info,) = sdk.runs(root=tmp_path)
    assert (info.status, str(file) in info.problem) == (None, True)


@pytest.mark.parametrize("name", ["0001.chief-0.000001.entry.json", "0001.worker-0.000009.saved.json", "notes.txt"])
def test_a_damaged_record_of_an_attempt_hides_nothing_else(tmp_path: Path, name: str) -> None:
    file = Path(finished_run(tmp_path).url) / "events" / name
    file.write_bytes(b'{"version": 1, "ti')
    run = sdk.attach(file.parents[1])
    status, why = run.status(), run.why()
    (info,) = sdk.runs(root=tmp_path)
    assert (status.state, status.attempts) == (sdk.State.SUCCEEDED, 1)
    assert info.status == status
    assert "run SUCCEEDED (done)" in " ".join(why.split())
    for said in (*status.findings, info.problem, why):
        assert f"This record is damaged: {file}: " in said
    assert file.read_bytes() == b'{"version": 1, "ti'
    # To act on it is another matter.
    with pytest.raises(sdk.CorruptRunError, match="Nothing was changed"):
        run.resume()


def test_a_run_that_was_copied_elsewhere_is_read_there(tmp_path: Path) -> None:
    copy = tmp_path / "runs" / FINISHED_RUN.name
    shutil.copytree(FINISHED_RUN, copy)
    run = sdk.attach(copy)
    status = run.status()
    assert (status.state, status.reason, status.attempts) == (sdk.State.SUCCEEDED, sdk.Reason.DONE, 1)
    assert run.result().metrics == {"loss": pytest.approx(1 / 3)}
    assert "hello from worker-0" in [line.text for line in run.logs(task="worker-0")]
    assert set(status.timings) == {"started", "entry", "first_step", "finished"}
    assert [info.id for info in sdk.runs(root=tmp_path)] == [run.id]
