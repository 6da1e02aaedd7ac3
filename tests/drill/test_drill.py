"""The parts of a drill that need no training: the named kills, their cost, the differences of two trainings."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sdk
from sdk.checkpoint import opening
from sdk.checkpoint.contents import Array, Contents
from sdk.checkpoint.opening import OpenStore, TaskInfo
from sdk.checkpoint.saver import AsyncSaver
from sdk.clock import SystemClock
from sdk.drill import ArrayDifference, DrillReport, Killed, UnseededCall, comparison, prepare, run_drill
from sdk.drill import kills as costs
from sdk.drill.kills import Kill, parse
from sdk.job.layout import RunPaths
from sdk.job.policies import Checkpoints
from sdk.planning.settings.merge import Destination
from sdk.records.events import Event
from sdk.storage.registry import open_store

TASKS = ["chief-0", "worker-0"]
REPO = str(Path(sdk.__file__).parent.parent)


def kill(text: str) -> Kill:
    return parse([text], TASKS)[0]


def event(kind: str, attempt: int, source: str = "chief-0", **data: Any) -> Event:
    return Event(attempt=attempt, source=source, sequence=1, kind=kind, time=float(attempt), data=data)


# --- The words ----------------------------------------------------------------------------------------------------


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
    with pytest.raises(sdk.InputError, match=said.replace("?", r"\?").replace(".", r"\.")):
        parse([word], TASKS)


@given(st.integers(2, 500), st.integers(0, 20), st.integers(0, 2**32 - 1))
def test_random_kills_are_at_different_steps_and_the_seed_repeats_them(steps: int, count: int, seed: int) -> None:
    count = min(count, steps - 1)
    found = parse([f"random:{count}"], TASKS, steps=steps, seed=seed)
    assert found == parse([f"random:{count}"], TASKS, steps=steps, seed=seed)
    assert len({one.number for one in found}) == count
    assert all(1 <= one.number < steps and one.task in TASKS and one.point == "step" for one in found)


def test_more_random_kills_than_steps_are_refused_once_the_steps_are_known() -> None:
    assert parse(["random:9"], TASKS) == ()
    with pytest.raises(sdk.InputError, match="9 steps: too few for 'random:9'"):
        parse(["random:9"], TASKS, steps=9)


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
        with pytest.raises(sdk.InputError) as caught:
            run_drill("train.py", kills=["chief-0@step:1:machine", "chief-0@step:1:x"], backend=backend)
        told = str(caught.value)
        assert "on vertex it runs on the emulator only, and none is configured here" in told
        assert "Nothing was started, and the cloud was not asked." in told
        assert "cannot kill 'x'" in told
    # What other runs of the project use is no reason for a drill to leave this machine.
    monkeypatch.setenv("PODLIFT_BACKEND", "vertex")
    assert prepare("train.py", {}, Destination(), os.environ, kills=["chief-0@step:1"], seed=1).backend == "local"
    assert not root.exists()


def test_a_mistake_is_reported_where_the_projects_file_names_a_model(write) -> None:
    write("train.py", "print(1)")
    write("podlift.toml", 'model = "digits"\nworkers = 0\n')
    with pytest.raises(sdk.InputError) as caught:
        run_drill("train.py", kills=["chief-0@step:1"], gate_metric=" ")
    told = str(caught.value)
    assert "workers: Must be greater than or equal to 1" in told
    assert "gate_metric: " in told


def test_every_mistake_is_reported_before_anything_starts(write, root: Path) -> None:
    write("train.py", "print(1)")
    with pytest.raises(sdk.InputError) as caught:
        run_drill("tran.py", kills=["worker-7@step:1", "x"], seed=-1, workers=2, checkpoint_keep_last=3, epochs=2)
    told = str(caught.value)
    for said in (
        "'tran.py'",
        "worker-7",
        "'x'",
        "The seed",
        "checkpoint_keep_last: a drill sets this itself",
        "'epochs'",
    ):
        assert said in told
    with pytest.raises(sdk.InputError, match="A drill needs a kill"):
        run_drill("train.py", kills=[])
    assert not root.exists()


# --- The cost of the kills ----------------------------------------------------------------------------------------


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
        (
            {0: done(75, 1)},
            [event("restored", 2, step=50, phase=1), event("restored", 2, step=70, phase=2)],
            [(75, 70, 5)],
        ),
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
    both = costs.killed(
        [kill("chief-0@step:9"), kill("worker-0@step:9")],
        {0: done(9, 1), 1: done(9, 1)},
        [event("restored", 2, step=5, phase=1)],
    )
    assert [one.steps_lost for one in both] == [4, 4]
    assert costs.steps_lost(both) == 4


def test_a_machine_with_a_notice_that_was_long_enough_costs_nothing() -> None:
    wanted = [kill("chief-0@step:1")]
    wanted = [replace(wanted[0], what="machine")]
    (ended,) = costs.killed(wanted, {0: done(40, 1)}, [event("first_step", 1)])
    (saved,) = costs.killed(wanted, {0: done(12, 1)}, [event("restored", 2, step=20, phase=1)])
    assert [each.steps_lost for each in (ended, saved)] == [0, 0]
    assert "chief-0@step:1:machine in attempt 1, after step 40; saved or ended within its notice, 0 steps lost" in str(
        ended
    )
    (lost,) = costs.killed(wanted, {0: done(12, 1)}, [event("restored", 2, step=10, phase=1)])
    assert "restored step 10, 2 steps lost" in str(lost)


def test_a_restart_without_a_kill_is_reported() -> None:
    events = [
        event("restarting", 1, failure={"message": "killed"}),
        event("restarting", 2, failure={"message": "out of memory"}),
    ]
    found = costs.killed([kill("chief-0@step:9")], {0: done(9, 1)}, events)
    assert costs.other_restarts(found, events) == ["Attempt 2 ended without a kill of the drill: out of memory"]


# --- The differences ----------------------------------------------------------------------------------------------


def trained(
    folder: Path, kernel: list[float], *, steps: int = 2, own: bytes = b"", stages: int = 1
) -> comparison.TrainingEnd:
    """Save a checkpoint of each step, and return the end: of one array of floats, and of the state of each replica."""
    paths = RunPaths(str(folder))
    store = open_store(paths.store)
    clock = SystemClock()
    opened = opening.open_first(store, 1, "test", clock)
    info = TaskInfo(run_id=folder.name, attempt=1, task="chief-0", tasks=("chief-0",))
    policy = Checkpoints(keep_last=100, on_busy="block")
    saver = AsyncSaver(OpenStore(store=store, opening=opened, info=info, policy=policy))
    for step in range(1, steps + 1):
        data = struct.pack(f"{len(kernel)}f", *(value if step > 1 else 0.0 for value in kernel))
        array = Array("dense/kernel", "float32", (len(kernel),), lambda data=data: memoryview(data))
        listed = [{"kind": "fit", "finished": True, "commit": "", "steps": step, "history": {}, "epochs": []}] * stages
        ticket = saver.save(Contents((array,), {"own": own}), step=step, position={"stages": listed, "at": {}})
        assert ticket is not None
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


def test_signs_of_zero_are_bits_too(tmp_path: Path) -> None:
    found, _ = comparison.compare_ends(trained(tmp_path / "a", [0.0]), trained(tmp_path / "b", [-0.0]))
    assert [(one.array, one.largest) for one in found] == [("dense/kernel", None)]


def test_other_steps_phases_shapes_and_replicas_are_differences(tmp_path: Path) -> None:
    one = trained(tmp_path / "a", [1.0])
    for name, other in {
        "steps": trained(tmp_path / "b", [1.0], steps=3),
        "phases": trained(tmp_path / "c", [1.0], stages=2),
        "dense/kernel": trained(tmp_path / "d", [1.0, 1.0]),
        "the state of task 1's replicas": trained(tmp_path / "e", [1.0], own=b"other"),
    }.items():
        assert [found.array for found in comparison.compare_ends(one, other)[0]] == [name]


def test_phases_without_a_kept_end_are_named(tmp_path: Path) -> None:
    one, other = trained(tmp_path / "a", [1.0], stages=3), trained(tmp_path / "b", [1.0], stages=3)
    assert comparison.compare_ends(one, other) == ([], [1, 2])


def test_a_run_without_checkpoints_has_no_end(tmp_path: Path) -> None:
    assert comparison.end_of(RunPaths(str(tmp_path))) is None


# --- The report ---------------------------------------------------------------------------------------------------

PASSED = DrillReport(
    verdict="passed",
    weights_equal=True,
    weights_sha="ab" * 32,
    steps=60,
    steps_lost=7,
    every_steps=10,
    seconds_lost=4.25,
    attempts=2,
    kills=(Killed(task="chief-0", point="step", number=47, attempt=1, step=47, restored=40, steps_lost=7),),
    runs={"undisturbed": "/runs/a", "again": "/runs/b", "killed": "/runs/c"},
)


def test_the_report_is_text_and_json() -> None:
    data = json.loads(json.dumps(PASSED.to_data()))
    wanted = {
        "weights_equal",
        "weights_sha",
        "steps_lost",
        "every_steps",
        "seconds_lost",
        "attempts",
        "kills",
        "kills_missed",
    }
    assert wanted <= data.keys()
    assert data["kills"][0]["restored"] == 40
    assert (data["passed"], data["exit_code"]) == (True, 0)
    assert "chief-0@step:47 in attempt 1, after step 47; restored step 40, 7 steps lost" in str(PASSED)
    assert "/runs/c" in str(PASSED)


@pytest.mark.parametrize(("seconds", "words"), [(4.25, "4.2 s longer than"), (-1.1, "1.1 s shorter than")])
def test_the_report_compares_the_killed_training_with_the_undisturbed_ones(seconds: float, words: str) -> None:
    assert words in str(replace(PASSED, seconds_lost=seconds))


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
    for said in (
        "first in layer/0",
        "and 12 more",
        "train.py:3 uuid.uuid4()",
        "chief-0@step:900",
        "the data is skipped",
    ):
        assert said in shown
    assert replace(report, user_fault=False).exit_code == 3


# --- Inside a task ------------------------------------------------------------------------------------------------

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
    return subprocess.run(
        [sys.executable, "-c", KILLED, str(folder), str(number), wanted], cwd=REPO, timeout=60
    ).returncode


@pytest.mark.process
def test_each_kill_happens_once_also_within_an_execution_of_several_steps(tmp_path: Path) -> None:
    words = ("chief-0@step:18", "chief-0@epoch:4", "worker-0@step:8", "chief-0@step:900")
    codes = [attempt_under(tmp_path, number, *words) for number in (1, 2, 3)]
    assert codes == [-9, -9, 0]
    left = {index: RunPaths(str(tmp_path)).kill(index) for index in range(4)}
    told = {index: json.loads(Path(path).read_bytes()) for index, path in left.items() if Path(path).exists()}
    # Epochs are counted over all attempts: steps 0 and 12 before the first kill, steps 0 and 12 after it.
    assert {index: (data["attempt"], data["step"]) for index, data in told.items()} == {0: (1, 20), 1: (2, 12)}
