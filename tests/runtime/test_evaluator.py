"""The evaluator task: it evaluates the checkpoints of the others, and ends when they have ended."""

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


def submitted(root: Path, *args: object, workers: int = 1, **more: Any) -> sdk.Run:
    job = sdk.Job(
        str(PROGRAMS / "evaluated.py"),
        args=[str(arg) for arg in args],
        resources=sdk.Resources(workers=workers, evaluator=True),
        checkpoints=sdk.Checkpoints(every_steps=2, keep_last=20),
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


def ended(run: sdk.Run) -> sdk.Status:
    status = run.wait(timeout_s=LIMIT_S)
    assert status.state is sdk.State.SUCCEEDED, run.why()
    return status


def printed(run: sdk.Run, task: str = "chief-0") -> list[Any]:
    return [json.loads(line) for line in said(run, task) if line.startswith("{")]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> sdk.Run:
    """A run with two fits, with a chief that was preempted in the first one; undisturbed ones are below."""
    run = submitted(tmp_path_factory.mktemp("evaluated"), "fit", 0.05)
    tasks.wait_for_step(run, 3)
    tasks.preempt(run, "chief-0")
    assert ended(run).attempts == 2
    return run


@pytest.mark.full
def test_each_checkpoint_is_evaluated_once_although_the_chief_was_preempted(trained: sdk.Run) -> None:
    steps = [step for step, _ in evaluated(trained)]
    assert steps == sorted(set(steps)), "in their order, none twice"
    assert {2, 4, 6, 8, 10, 12, 14, 16} <= set(steps), "16 steps, each second one saved"
    assert "evaluator: the training has ended" in "\n".join(line.text for line in trained.logs(task="evaluator-0"))


@pytest.mark.full
def test_an_evaluators_numbers_equal_the_trainings_own_validation(trained: sdk.Run) -> None:
    found = dict(evaluated(trained))
    own = [loss for part in printed(trained)[-2:] for loss in part["val_loss"]]
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
    assert "the end of the program" not in said(trained, "evaluator-0"), "it ends in its last fit"
    assert sorted(os.listdir(trained.plan.paths.model)) == ["0.keras", "1.keras"]
    assert printed(trained, "evaluator-0")[-1] == printed(trained)[-2], "its first fit returns the training's history"


@pytest.mark.full
def test_with_tf_keras_it_evaluates_the_ends_of_epochs(tmp_path: Path) -> None:
    run = submitted(tmp_path, "fit", 0.05, env={"TF_USE_LEGACY_KERAS": "1"})
    ended(run)
    found = evaluated(run)
    assert [step for step, _ in found] == [4, 8, 12, 16]
    own = [loss for part in printed(run) for loss in part["val_loss"]]
    np.testing.assert_allclose([loss for _, loss in found], own, rtol=1e-5)
    assert not any("not exact" in line.text for line in run.logs(task="chief-0")), "arrays keep their order"


@pytest.mark.full
def test_in_a_loop_of_two_tasks_it_loads_the_weights_of_each_checkpoint(tmp_path: Path) -> None:
    run = submitted(tmp_path, "loop", 0.1, workers=2)
    ended(run)
    own = [each["sum"] for each in printed(run)]
    found = evaluated(run)
    assert [step for step, _ in found] == [2, 4, 6, 8]
    np.testing.assert_allclose([value for _, value in found], own, rtol=1e-6)
    assert run.last_metrics()["val_sum"] == pytest.approx(own[-1])


@pytest.mark.full
def test_a_killed_evaluator_continues_while_the_training_goes_on(tmp_path: Path) -> None:
    run = submitted(tmp_path, "fit", 0.2, retry=sdk.Retry(infrastructure=1))
    tasks.wait_for_step(run, 3)
    tasks.kill(run, "evaluator-0")
    status = ended(run)
    assert (status.attempts, status.restarted_alone) == (1, {"evaluator-0": 1})
    steps = [step for step, _ in evaluated(run)]
    assert steps == sorted(set(steps)) and steps[-1] == 16
    found, own = dict(evaluated(run)), [loss for part in printed(run) for loss in part["val_loss"]]
    np.testing.assert_allclose([found[step] for step in (4, 8, 12, 16)], own, rtol=1e-5)


@pytest.mark.full
def test_a_fit_without_validation_data_is_refused_in_the_evaluator(write: Any) -> None:
    write("train.py", """
        import keras, numpy as np
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        model.fit(np.ones((8, 1)), np.ones((8, 1)), verbose=0)
        """)  # fmt: skip
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
