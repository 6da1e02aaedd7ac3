"""A drill without training: named kills, their cost, differences of two trainings; and one that reports the use of the time."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import REPO, input_error

import sdk
from sdk.checkpoint import opening
from sdk.checkpoint.contents import Array, Contents
from sdk.checkpoint.opening import OpenStore, TaskInfo
from sdk.checkpoint.saver import AsyncSaver
from sdk.cli import app
from sdk.clock import SystemClock
from sdk.drill import ArrayDifference, DrillReport, Killed, UnseededCall, comparison, prepare, run_drill
from sdk.drill import kills as costs
from sdk.drill.goodput import Disturbance, GoodputReport, execute_goodput, prepare_goodput
from sdk.drill.kills import Kill, parse
from sdk.job.layout import RunPaths
from sdk.job.policies import Checkpoints
from sdk.planning.settings.merge import Destination
from sdk.records.events import Event
from sdk.status import Goodput, State
from sdk.storage.registry import open_store

TASKS = ["chief-0", "worker-0"]


def kill(text: str) -> Kill:
    return parse([text], TASKS)[0]


def event(kind: str, attempt: int, source: str = "chief-0", **data: Any) -> Event:
    return Event(attempt=attempt, source=source, sequence=1, kind=kind, time=float(attempt), data=data)


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("worker-1@step:5", "no task 'worker-1'. Did you mean 'worker-0'?"),
        ("worker-0@stp:5", "no kill point 'stp'. Did you mean 'step'?"),
        ("worker-0@step:0", "counts from 1"),
        ("worker-0@step", "This is not a kill"),
        ("worker-0@step:-1", "This is not a kill"),
        ("random:x", "This is not a kill"),
        ("", "Expected: worker-0@step:50, or random:3."),
        ("worker-0@step:5:machin", "cannot kill 'machin'. Did you mean 'machine'?"),
        ("worker-0@step:5:machine", "here, a drill can only kill process"),
    ],
)
def test_an_invalid_kill_is_reported_with_the_known_ones(word: str, said: str) -> None:
    with input_error(said):
        parse([word], TASKS)


@given(st.integers(2, 500), st.integers(0, 20), st.integers(0, 2**32 - 1))
def test_random_kills_are_at_different_steps_and_the_seed_repeats_them(steps: int, count: int, seed: int) -> None:
    count = min(count, steps - 1)
    found = parse([f"random:{count}"], TASKS, steps=steps, seed=seed)
    assert found == parse([f"random:{count}"], TASKS, steps=steps, seed=seed)
    assert len({one.number for one in found}) == count
    assert all(1 <= one.number < steps and one.task in TASKS and one.point == "step" for one in found)
    # They have to fit once the steps are known.
    assert parse([f"random:{steps}"], TASKS) == ()
    with pytest.raises(sdk.InputError, match=f"{steps} steps: too few for 'random:{steps}'"):
        parse([f"random:{steps}"], TASKS, steps=steps)


def test_where_there_are_containers_random_kills_are_of_all_that_one_place_can_lose() -> None:
    everything: Any = ("process", "agent", "machine", "region")
    (one,) = parse(["worker-0@epoch:2:region"], TASKS, everything)
    assert (str(one), one.announcement) == ("worker-0@epoch:2:region", "podlift: drill: worker-0@epoch:2:region")
    found = parse(["random:60"], TASKS, everything, steps=100, seed=4)
    assert {each.what for each in found} == {"process", "agent", "machine"}
    # The steps come from the same seed on this machine.
    assert [each.number for each in found] == [each.number for each in parse(["random:60"], TASKS, steps=100, seed=4)]


def test_a_drill_on_a_cloud_is_refused_without_its_emulator(write, monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    write("train.py", "print(1)")
    monkeypatch.delenv("PODLIFT_EMULATOR", raising=False)
    for backend in ("vertex", sdk.Vertex(project="mine", bucket="mine", image="mine/image")):
        where = "on vertex it runs on the emulator only, and none is configured here"
        with input_error(where, "Nothing was started, and the cloud was not asked.", "cannot kill 'x'"):
            run_drill("train.py", kills=["chief-0@step:1:machine", "chief-0@step:1:x"], backend=backend)
    # What other runs of the project use is no reason for a drill to leave this machine.
    monkeypatch.setenv("PODLIFT_BACKEND", "vertex")
    assert prepare("train.py", {}, Destination(), os.environ, kills=["chief-0@step:1"], seed=1).backend == "local"
    assert not root.exists()


def test_a_mistake_is_reported_where_the_projects_file_names_a_model(write) -> None:
    write("train.py", "print(1)")
    write("podlift.toml", 'model = "digits"\nworkers = 0\n')
    with input_error("workers: Must be greater than or equal to 1", "gate_metric: "):
        run_drill("train.py", kills=["chief-0@step:1"], gate_metric=" ")


def test_every_mistake_is_reported_before_anything_starts(write, root: Path) -> None:
    write("train.py", "print(1)")
    keeps = "checkpoint_keep_last: a drill sets this itself"
    with input_error("'tran.py'", "worker-7", "'x'", "The seed", keeps, "'epochs'"):
        run_drill("tran.py", kills=["worker-7@step:1", "x"], seed=-1, workers=2, checkpoint_keep_last=3, epochs=2)
    with pytest.raises(sdk.InputError, match="A drill needs a kill"):
        run_drill("train.py", kills=[])
    assert not root.exists()


def done(step: int | None, attempt: int) -> dict[str, Any]:
    return {"number": 1, "step": step, "attempt": attempt, "time": float(attempt)}


@pytest.mark.parametrize(
    ("kills", "events", "lost"),
    [
        ({0: done(47, 1)}, [event("restored", 2, step=40, phase=1)], [(47, 40, 7)]),
        ({0: done(7, 1)}, [event("first_step", 2)], [(7, 0, 7)]),
        ({0: done(40, 1)}, [event("restored", 2, step=40, phase=1)], [(40, 40, 0)]),
        # The second phase had saved nothing: the training continues at the end of the first one.
        ({0: done(55, 1)}, [event("restored", 2, step=50, phase=1)], [(55, 50, 5)]),
        ({0: done(75, 1)}, [event("restored", 2, step=50, phase=1), event("restored", 2, step=70, phase=2)], [(75, 70, 5)]),
        # Attempt 2 was killed before it had restored anything.
        (
            {0: done(47, 1), 1: done(None, 2)},
            [event("entry", 2), event("restored", 3, step=40, phase=1)],
            [(47, 40, 7), (0, 0, 0)],
        ),
        # A validation comes first in an attempt that was restored.
        (
            {0: done(47, 1), 1: done(None, 2)},
            [event("restored", 2, step=40, phase=1), event("restored", 3, step=40, phase=1)],
            [(47, 40, 7), (40, 40, 0)],
        ),
        # A warm start names a step of another run.
        ({0: done(4, 1)}, [event("restored", 1, step=900, phase=1), event("restored", 2, step=900, phase=1)], [(4, 4, 0)]),
    ],
)  # fmt: skip
def test_steps_are_lost_from_the_kill_back_to_where_the_next_attempt_began(kills, events, lost) -> None:
    wanted = [kill("chief-0@step:1"), kill("worker-0@validation:1")]
    found = costs.killed(wanted, kills, events)
    assert [(one.step, one.restored, one.steps_lost) for one in found] == lost
    assert costs.steps_lost(found) == sum(steps for _, _, steps in lost)
    assert costs.missed(wanted, kills) == tuple(str(one) for index, one in enumerate(wanted) if index not in kills)


def test_two_tasks_that_are_killed_in_one_attempt_lose_the_same_steps() -> None:
    wanted, ended = [kill("chief-0@step:9"), kill("worker-0@step:9")], {0: done(9, 1), 1: done(9, 1)}
    both = costs.killed(wanted, ended, [event("restored", 2, step=5, phase=1)])
    assert [one.steps_lost for one in both] == [4, 4]
    assert costs.steps_lost(both) == 4


def test_a_machine_with_a_notice_that_was_long_enough_costs_nothing() -> None:
    wanted = [replace(kill("chief-0@step:1"), what="machine")]
    (ended,) = costs.killed(wanted, {0: done(40, 1)}, [event("first_step", 1)])
    (saved,) = costs.killed(wanted, {0: done(12, 1)}, [event("restored", 2, step=20, phase=1)])
    assert [each.steps_lost for each in (ended, saved)] == [0, 0]
    said = "chief-0@step:1:machine in attempt 1, after step 40; saved or ended within its notice, 0 steps lost"
    assert said in str(ended)
    (lost,) = costs.killed(wanted, {0: done(12, 1)}, [event("restored", 2, step=10, phase=1)])
    assert "restored step 10, 2 steps lost" in str(lost)


def test_a_restart_without_a_kill_is_reported() -> None:
    messages = {1: "killed", 2: "out of memory"}
    events = [event("restarting", attempt, failure={"message": text}) for attempt, text in messages.items()]
    found = costs.killed([kill("chief-0@step:9")], {0: done(9, 1)}, events)
    assert costs.other_restarts(found, events) == ["Attempt 2 ended without a kill of the drill: out of memory"]


def trained(
    folder: Path, kernel: list[float], *, steps: int = 2, own: bytes = b"", stages: int = 1
) -> comparison.TrainingEnd:
    """Save a checkpoint of each step, and return the end: of one array of floats, and of the state of each replica."""
    paths, clock = RunPaths(str(folder)), SystemClock()
    store = open_store(paths.store)
    opened = opening.open_first(store, 1, "test", clock)
    info = TaskInfo(run_id=folder.name, attempt=1, task="chief-0", tasks=("chief-0",))
    policy = Checkpoints(keep_last=100, on_busy="block")
    saver = AsyncSaver(OpenStore(store=store, opening=opened, info=info, policy=policy))
    for step in range(1, steps + 1):
        data = struct.pack(f"{len(kernel)}f", *(value if step > 1 else 0.0 for value in kernel))
        array = Array("dense/kernel", "float32", (len(kernel),), lambda data=data: memoryview(data))
        listed = [{"kind": "fit", "finished": True, "commit": "", "steps": step, "history": {}, "epochs": []}] * stages
        ticket = saver.save(Contents((array,), {"own": own}), step=step, position={"stages": listed, "at": {}})
        ticket.wait(20)
    saver.close(20)
    end = comparison.end_of(paths)
    assert end is not None
    return end


def test_equal_trainings_have_one_sha_and_no_difference(tmp_path: Path) -> None:
    one, other = trained(tmp_path / "a", [1.0, 2.0]), trained(tmp_path / "b", [1.0, 2.0])
    assert comparison.compare_ends(one, other) == ([], [])
    assert comparison.digest(one.checkpoint) == comparison.digest(other.checkpoint)
    assert comparison.first_differences(one.store, other.store) == []


def test_a_single_bit_is_a_difference_and_the_first_step_that_has_it_is_named(tmp_path: Path) -> None:
    one, other = trained(tmp_path / "a", [1.0, 2.0], steps=4), trained(tmp_path / "b", [1.0, 2.0000002], steps=4)
    found, _ = comparison.compare_ends(one, other)
    assert [(one.array, one.phase, one.step) for one in found] == [("dense/kernel", 1, 4)]
    assert comparison.digest(one.checkpoint) != comparison.digest(other.checkpoint)
    (first,) = comparison.first_differences(one.store, other.store)
    assert (first.array, first.step) == ("dense/kernel", 2)
    assert first.largest == pytest.approx(2e-7, rel=0.5)
    assert "dense/kernel at step 2, by up to 2.38e-07" in str(first)
    # The sign of zero is a bit, too.
    found, _ = comparison.compare_ends(trained(tmp_path / "zero", [0.0]), trained(tmp_path / "minus", [-0.0]))
    assert [(one.array, one.largest) for one in found] == [("dense/kernel", None)]


def test_other_steps_phases_shapes_and_replicas_are_differences_and_lost_ends_named(tmp_path: Path) -> None:
    one = trained(tmp_path / "a", [1.0])
    for name, other in {
        "steps": trained(tmp_path / "b", [1.0], steps=3),
        "phases": trained(tmp_path / "c", [1.0], stages=2),
        "dense/kernel": trained(tmp_path / "d", [1.0, 1.0]),
        "the state of task 1's replicas": trained(tmp_path / "e", [1.0], own=b"other"),
    }.items():
        assert [found.array for found in comparison.compare_ends(one, other)[0]] == [name]
    # Phases without a kept end are named, and a run without checkpoints has none.
    one, other = trained(tmp_path / "f", [1.0], stages=3), trained(tmp_path / "g", [1.0], stages=3)
    assert comparison.compare_ends(one, other) == ([], [1, 2])
    assert comparison.end_of(RunPaths(str(tmp_path))) is None


COSTS = {"steps": 60, "steps_lost": 7, "every_steps": 10, "seconds_lost": 4.25, "attempts": 2}
PASSED = DrillReport(
    verdict="passed",
    weights_equal=True,
    weights_sha="ab" * 32,
    kills=(Killed(task="chief-0", point="step", number=47, attempt=1, step=47, restored=40, steps_lost=7),),
    runs={"undisturbed": "/runs/a", "again": "/runs/b", "killed": "/runs/c"},
    **COSTS,
)


def test_the_report_is_text_and_json() -> None:
    data = json.loads(json.dumps(PASSED.to_data()))
    wanted = "weights_equal weights_sha steps_lost every_steps seconds_lost attempts kills kills_missed"
    assert set(wanted.split()) <= data.keys()
    assert data["kills"][0]["restored"] == 40
    assert (data["passed"], data["exit_code"]) == (True, 0)
    assert "chief-0@step:47 in attempt 1, after step 47; restored step 40, 7 steps lost" in str(PASSED)
    assert "/runs/c" in str(PASSED) and "4.2 s longer than" in str(PASSED)
    assert "1.1 s shorter than" in str(replace(PASSED, seconds_lost=-1.1))


@pytest.mark.parametrize("verdict", ["not_equal", "not_reproducible", "kills_missed", "nothing_saved", "failed"])
def test_everything_but_passed_ends_with_1_and_says_why(verdict: Any) -> None:
    report = replace(
        PASSED,
        verdict=verdict,
        differences=tuple(ArrayDifference(array=f"layer/{number}", step=20) for number in range(20)),
        sources=(UnseededCall(what="uuid.uuid4()", file="train.py", line=3),),
        kills_missed=("chief-0@step:900",),
        downgrades=("the data is skipped",),
    )
    shown = str(report)
    assert (report.passed, report.exit_code) == (False, 1)
    assert shown.startswith(verdict.replace("_", " "))
    parts = ("first in layer/0", "and 12 more", "train.py:3 uuid.uuid4()", "chief-0@step:900", "the data is skipped")
    assert [part for part in parts if part not in shown] == []
    assert replace(report, user_fault=False).exit_code == 3


KILLED = """
import json, sys
from sdk.job.payload import Kill
from sdk.job.layout import RunPaths
from sdk.records.kills import KillRecords
from sdk.runtime.hooks.auto_checkpoint import KillPoints
records = KillRecords(RunPaths(sys.argv[1]))
kills = KillPoints(records, int(sys.argv[2]), "chief-0", [Kill(**each) for each in json.loads(sys.argv[3])])
for step in range(0, 40, 4):
    kills.reached("step", step)
    if step % 12 == 0:
        kills.reached("epoch")
print("survived")
"""


def attempt_under(folder: Path, number: int, *words: str) -> int:
    wanted = json.dumps([vars(kill(word)) for word in words])
    command = [sys.executable, "-c", KILLED, str(folder), str(number), wanted]
    return subprocess.run(command, cwd=REPO, timeout=60).returncode


@pytest.mark.process
def test_each_kill_happens_once_also_within_an_execution_of_several_steps(tmp_path: Path) -> None:
    words = ("chief-0@step:18", "chief-0@epoch:4", "worker-0@step:8", "chief-0@step:900")
    codes = [attempt_under(tmp_path, number, *words) for number in (1, 2, 3)]
    assert codes == [-9, -9, 0]
    left = {index: RunPaths(str(tmp_path)).kill(index) for index in range(4)}
    told = {index: json.loads(Path(path).read_bytes()) for index, path in left.items() if Path(path).exists()}
    # Epochs are counted over all attempts: steps 0 and 12 before the first kill, steps 0 and 12 after it.
    assert {index: (data["attempt"], data["step"]) for index, data in told.items()} == {0: (1, 20), 1: (2, 12)}


PAGE = (REPO / "docs" / "reference" / "json.md").read_text()
# It keeps nothing, so that all steps before the last kill are done again.
STEPS = """\
import time
import sdk

for step in range(1, 100_000):
    time.sleep(0.02)
    sdk.context().report({"loss": 1.0}, step=step)
"""


@pytest.mark.process
@pytest.mark.full
def test_tasks_are_killed_in_time_and_the_cost_is_reported(write, root: Path) -> None:
    write("train.py", STEPS)
    disturbance = Disturbance(for_s=6.0, kill_every_s=2.0, at_least=0.01)
    plan = prepare_goodput("train.py", {"workers": 2}, Destination(root=str(root)), {}, disturbance)
    assert plan.job.retry.infrastructure == sdk.Retry().infrastructure + 2
    report = execute_goodput(plan, disturbance, SystemClock())
    assert report.passed and report.state is State.CANCELLED and not report.message
    assert (report.attempts, report.kills_missed) == (3, 0)
    assert [kill.attempt for kill in report.kills] == [1, 2]
    assert all(kill.at_s >= 2.0 * kill.attempt and (kill.trains_again_s or 0) > 0 for kill in report.kills)
    run = sdk.attach(report.run)
    for task in run.plan.tasks:
        spent = run.goodput(task)
        assert spent is not None and spent.task == task
        whole = run.status().timings["finished"]
        assert sum(spent.parts.values()) == pytest.approx(whole, rel=0.01)
        # The steps of the last attempt alone were kept.
        assert spent.steps_lost > 20 and spent.step_s > 0.2 and spent.lost_to_failures_s > 2.0
    assert report.goodput == run.goodput()
    with pytest.raises(sdk.InputError, match="no task 'worker-7'"):
        run.goodput("worker-7")


def report_of(step_s: float, **given: object) -> GoodputReport:
    spent = Goodput(task="chief-0", total_s=100.0, start_s=100.0 - step_s - 6, step_s=step_s, evaluation_s=6.0)
    known = {"state": State.CANCELLED, "goodput": spent, "at_least": 0.95}
    known |= {"attempts": 2, "kills": (), "kills_missed": 0}
    return GoodputReport(**{**known, "run": "/runs/x", **given})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("report", "code", "said"),
    [
        (report_of(90), 0, "passed: the program had 96.0% of 1 min 40 s, and 90.0% were steps"),
        (report_of(88), 1, "too low: the program had 94.0%"),
        (report_of(94, kills_missed=2), 1, "too short: the training ended before 2 kills"),
        (report_of(94, message="The disk is full."), 3, "failed: the training did not continue: The disk is full."),
        (report_of(94, message="KeyError: 'x'", user_fault=True), 1, "failed: the training did not continue: KeyError"),
        (report_of(94, goodput=None), 1, "failed: no task has accounted its time"),
    ],
)
def test_the_verdict_is_about_the_time_that_the_kills_left_to_the_program(report, code, said) -> None:
    assert (report.exit_code, report.passed) == (code, code == 0)
    assert str(report).startswith(said)
    section = PAGE.partition("\n## goodput\n")[2].partition("\n## ")[0]
    names = {field.name for field in fields(GoodputReport)} | {"passed", "exit_code"}
    assert set(report.to_data()) == names
    assert all(f"`{name}`" in section for name in names)
    assert json.loads(json.dumps(report.to_data()))["exit_code"] == code


def test_mistakes_are_reported_together_before_anything_starts(write, root: Path, capsys) -> None:
    write("train.py", "print(1)")
    words = ["--for", "5m", "--at-least", "0", "--retry-infrastructure", "2"]
    assert app.run(["goodput", "train.py", *words, "--backend", "vertex", "--root", str(root)]) == 2
    said = " ".join(capsys.readouterr().err.split())
    for sentence in (
        "Received: one every 10 min, for 5 min. Next: --for longer than --kill-every",
        "Received: --at-least 0%",
        "retry_infrastructure: a drill sets this itself",
        "Received: --backend vertex",
    ):
        assert sentence in said
    assert not root.exists()
