"""The evaluator task: it evaluates the checkpoints of the others, and ends when they have ended."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from support import LIMIT_S, PROGRAMS, needs, said

import sdk
from sdk.runtime import context
from sdk.runtime.reporting import Reporter
from sdk.testing import tasks

np = pytest.importorskip("numpy")

pytestmark = pytest.mark.tensorflow
needs("tensorflow")

PROGRAM = PROGRAMS / "evaluated.py"


def submitted(root: Path, *args: object, workers: int = 1, every_steps: int = 2, **more: Any) -> sdk.Run:
    job = sdk.Job(
        str(PROGRAM),
        args=[str(arg) for arg in args],
        resources=sdk.Resources(workers=workers, evaluator=True),
        checkpoints=sdk.Checkpoints(every_steps=every_steps, keep_last=20),
        limits=sdk.Limits(grace_s=30, timeout_s=LIMIT_S),
        **{"retry": sdk.Retry(user_errors=0, infrastructure=0, preemptions=None), **more},
    )
    return sdk.submit(job, root=root)


def evaluated(run: sdk.Run) -> list[tuple[int, float]]:
    """Return the step of each record of the evaluator, and its number."""
    path = run.plan.paths.metrics
    found = [Path(path(attempt, "evaluator-0")) for attempt in range(1, run.status().attempts + 1)]
    lines = [json.loads(line) for file in found if file.exists() for line in file.read_text().splitlines()]
    return [(line["step"], next(iter(line["metrics"].values()))) for line in lines]


@pytest.fixture(scope="module", params=[False, True], ids=["undisturbed", "preempted"])
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> sdk.Run:
    """A run with two fits, undisturbed or with a chief that was preempted in the first one."""
    run = submitted(tmp_path_factory.mktemp("evaluated"), "fit", 0.05)
    if request.param:
        tasks.wait_for_step(run, 3)
        tasks.preempt(run, "chief-0")
    status = run.wait(timeout_s=LIMIT_S)
    assert (status.state, status.attempts) == (sdk.State.SUCCEEDED, 1 + request.param), run.why()
    return run


@pytest.mark.full
def test_each_checkpoint_is_evaluated_once_also_if_the_chief_was_preempted(trained: sdk.Run) -> None:
    steps = [step for step, _ in evaluated(trained)]
    assert steps == sorted(set(steps)), "in their order, none twice"
    assert {2, 4, 6, 8, 10, 12, 14, 16} <= set(steps), "16 steps, each second one saved"
    assert "evaluator: the training has ended" in "\n".join(line.text for line in trained.logs(task="evaluator-0"))


@pytest.mark.full
def test_an_evaluators_numbers_equal_the_trainings_own_validation(trained: sdk.Run) -> None:
    found = dict(evaluated(trained))
    parts = [json.loads(line) for line in said(trained, "chief-0") if line.startswith("{")]
    own = [loss for part in parts[-2:] for loss in part["val_loss"]]
    np.testing.assert_allclose([found[step] for step in (4, 8, 12, 16)], own, rtol=1e-5)


def on_the_board(run: sdk.Run) -> dict[int, float]:
    """Return the numbers in the run's TensorBoard folder by step."""
    import tensorflow as tf

    found = {}
    for file in Path(run.plan.paths.tensorboard).rglob("events.*"):
        for record in tf.data.TFRecordDataset(str(file)).as_numpy_iterator():
            event = tf.compat.v1.Event.FromString(record)
            for value in event.summary.value:
                found[event.step] = value.simple_value
    return found


@pytest.mark.full
def test_its_numbers_are_in_the_runs_metrics_and_in_its_tensorboard_folder(trained: sdk.Run) -> None:
    found = dict(evaluated(trained))
    reported = {row["step"] for row in trained.metrics() if "val_loss" in row and "loss" not in row}
    assert reported == set(found)
    assert trained.last_metrics()["val_loss"] == pytest.approx(found[16])
    assert on_the_board(trained) == pytest.approx(found)


@pytest.mark.full
def test_an_evaluator_neither_trains_nor_overwrites_files_of_the_chief(trained: sdk.Run) -> None:
    lines = said(trained, "evaluator-0")
    assert "the end of the program" not in lines, "it ends in its last fit"
    assert sorted(os.listdir(trained.plan.paths.model)) == ["0.keras", "1.keras"]
    histories = [json.loads(line) for line in lines if line.startswith("{")]
    own = [json.loads(line) for line in said(trained, "chief-0") if line.startswith("{")]
    assert histories[-1] == own[-2], "its first fit returns the history of the training"


@pytest.mark.full
def test_with_tf_keras_it_evaluates_the_ends_of_epochs(tmp_path: Path) -> None:
    run = submitted(tmp_path, "fit", 0.05, env={"TF_USE_LEGACY_KERAS": "1"})
    assert run.wait(timeout_s=LIMIT_S).state is sdk.State.SUCCEEDED, run.why()
    parts = [json.loads(line) for line in said(run, "chief-0") if line.startswith("{")]
    found = evaluated(run)
    assert [step for step, _ in found] == [4, 8, 12, 16]
    np.testing.assert_allclose(
        [loss for _, loss in found], [loss for part in parts for loss in part["val_loss"]], rtol=1e-5
    )
    assert not any("not exact" in line.text for line in run.logs(task="chief-0")), "arrays keep their order"


@pytest.mark.full
def test_in_a_loop_of_two_tasks_it_loads_the_weights_of_each_checkpoint(tmp_path: Path) -> None:
    run = submitted(tmp_path, "loop", 0.1, workers=2)
    assert run.wait(timeout_s=LIMIT_S).state is sdk.State.SUCCEEDED, run.why()
    own = [json.loads(line)["sum"] for line in said(run, "chief-0") if line.startswith("{")]
    found = evaluated(run)
    assert [step for step, _ in found] == [2, 4, 6, 8]
    np.testing.assert_allclose([value for _, value in found], own, rtol=1e-6)
    assert run.last_metrics()["val_sum"] == pytest.approx(own[-1])


@pytest.mark.full
def test_a_killed_evaluator_continues_while_the_training_goes_on(tmp_path: Path) -> None:
    run = submitted(tmp_path, "fit", 0.2, retry=sdk.Retry(infrastructure=1))
    tasks.wait_for_step(run, 3)
    tasks.kill(run, "evaluator-0")
    status = run.wait(timeout_s=LIMIT_S)
    assert (status.state, status.attempts, status.restarted_alone) == (sdk.State.SUCCEEDED, 1, {"evaluator-0": 1})
    steps = [step for step, _ in evaluated(run)]
    assert steps == sorted(set(steps)) and steps[-1] == 16


@pytest.mark.full
def test_a_fit_without_validation_data_is_refused_in_the_evaluator(write: Any, tmp_path: Path) -> None:
    write(
        "train.py",
        """
        import keras, numpy as np
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        model.fit(np.ones((8, 1)), np.ones((8, 1)), verbose=0)
        """,
    )
    run = sdk.submit("train.py", evaluator=True)
    status = run.wait(timeout_s=LIMIT_S)
    assert status.failure is not None and status.failure.task == "evaluator-0"
    assert "without validation_data" in status.failure.message and "ctx.is_evaluator" in status.failure.message


def test_each_side_learns_the_part_of_the_other(write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    write("train.py", "print(1)")
    payload = sdk.plan("train.py", evaluator=True).payload(1)
    monkeypatch.setattr(context, "_current", None)
    context.enter(payload, "evaluator-0", Reporter(None))
    assert sdk.context().is_evaluator and sdk.context().shard() == (0, 1)
    with pytest.raises(sdk.InputError, match="each_checkpoint"):
        sdk.context().checkpoint(model=None)
    context.enter(payload, "chief-0", Reporter(None))
    assert not sdk.context().is_evaluator
    with pytest.raises(sdk.InputError, match="--evaluator"):
        sdk.context().each_checkpoint(model=None)
