"""What Ray Train has, each with podlift's own: the rows of docs/how-to/from-ray-train.md, on one run of two workers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support import LONG_LIMIT_S, needs

import sdk

needs("tensorflow", "keras")
pytestmark = [pytest.mark.full, pytest.mark.tensorflow]

PROGRAM = """
import os

import numpy as np
import tensorflow as tf

import sdk

def build():
    return tf.keras.Sequential([tf.keras.layers.Input((1,)), tf.keras.layers.Dense(8), tf.keras.layers.Dense(1)])

def rows(path):
    return np.loadtxt(path, delimiter=",", dtype="float32")

class Keep(tf.keras.callbacks.Callback):
    # A copy of the weights of each epoch, to compare the checkpoints with, and a failure of the first attempt.
    def on_epoch_end(self, epoch, logs=None):
        os.makedirs(sdk.context().dirs.model, exist_ok=True)
        np.savez(os.path.join(sdk.context().dirs.model, f"{epoch}.npz"), *self.model.get_weights())
        assert epoch != 2 or os.environ["PODLIFT_ATTEMPT"] != "1", "the first attempt fails in its third epoch"

def train(lr, epochs, fails=True):
    ctx = sdk.context()
    with ctx.strategy.scope():
        tf.keras.utils.set_random_seed(1)
        model = build()
        model.compile(optimizer=tf.keras.optimizers.SGD(lr), loss="mse", metrics=["mae"])
    data = rows(ctx.inputs["train"])
    data = tf.data.Dataset.from_tensor_slices((data[:, :1], data[:, 1:])).batch(40)
    shard = ctx.strategy.experimental_distribute_dataset(data)
    seen = sum(len(part) for x, _ in shard for part in ctx.strategy.experimental_local_results(x))
    print(f"shard {ctx.task}: {seen} of {len(ctx.tasks)} tasks", flush=True)
    model.fit(data, epochs=epochs, verbose=0, callbacks=[Keep()] if fails else [])
"""
EPOCHS, STEPS = 5, 5


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("line")
    (folder / "line.py").write_text(PROGRAM)
    x = np.arange(200) / 200
    np.savetxt(folder / "rows.csv", np.stack([x, 2 * x], axis=1), delimiter=",")
    return folder


def submitted(folder: Path, **settings: object) -> sdk.Run:
    job = {"workers": 2, "root": folder / "root", "inputs": {"train": str(folder / "rows.csv")}, "code_project": folder}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        run = sdk.submit("line:train", **job, **settings)  # type: ignore[arg-type]
        run.wait(LONG_LIMIT_S)
    return run


@pytest.fixture(scope="module")
def run(folder: Path) -> sdk.Run:
    return submitted(
        folder,
        args={"lr": 0.05, "epochs": EPOCHS},
        name="line",
        retry_user_errors=2,
        checkpoint_keep_last=2,
        checkpoint_best="loss",
    )


def test_scaling_and_run_config_are_the_tasks_and_the_name_and_root(run: sdk.Run, folder: Path) -> None:
    assert run.plan.tasks == ["chief-0", "worker-0"]
    assert run.id.startswith("line-") and run.url == str(folder / "root" / "runs" / run.id)


def test_failure_config_is_a_budget_of_restarts_that_continue(run: sdk.Run) -> None:
    assert (run.status().state, run.status().attempts) == (sdk.State.SUCCEEDED, 2)
    second = [record for record in run.metrics() if record["attempt"] == 2]
    assert 0 < len(second) < EPOCHS and second[-1]["step"] == EPOCHS * STEPS


def test_report_and_result_metrics_need_no_callback(run: sdk.Run) -> None:
    assert run.result().metrics.keys() == {"loss", "mae"}
    assert {record["epoch"] for record in run.metrics()} == set(range(EPOCHS))


def test_checkpoint_config_keeps_the_last_ones_and_the_best_one(run: sdk.Run) -> None:
    every, best = run.checkpoints(), run.checkpoints(best="loss")
    assert every[-1].step == EPOCHS * STEPS and len(every) <= 4
    losses = [entry.metrics["loss"] for entry in best]
    assert losses == sorted(losses) and losses[0] == min(record["metrics"]["loss"] for record in run.metrics())
    assert [entry.step for entry in run.checkpoints(best="max:loss")] == [entry.step for entry in reversed(best)]


def test_a_model_is_loaded_from_any_checkpoint_in_three_lines(run: sdk.Run, folder: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        from line import build  # type: ignore[import-not-found]
    for entry in run.checkpoints(best="loss"):
        model = build()
        run.load_weights(model, entry)
        kept = np.load(f"{run.result().model_dir}/{entry.step // STEPS - 1}.npz")
        for weight, name in zip(model.get_weights(), kept.files, strict=True):
            np.testing.assert_array_equal(weight, kept[name])
    assert run.load_weights(build()).step == run.checkpoints()[-1].step
    with pytest.raises(sdk.InputError, match="no such checkpoint"):
        run.load_weights(build(), 9999)


def test_a_dataset_is_divided_among_the_workers(run: sdk.Run) -> None:
    for task in run.plan.tasks:
        assert any(line.text == f"shard {task}: 100 of 2 tasks" for line in run.logs(task=task))


def test_resume_from_checkpoint_begins_a_new_run_with_its_weights(run: sdk.Run, folder: Path) -> None:
    args = {"lr": 0.01, "epochs": 1, "fails": False}
    again = submitted(folder, args=args, checkpoint_resume_from=run.url)
    (record,) = again.metrics()
    first = run.metrics()[0]["metrics"]["loss"]
    assert record["step"] == STEPS and record["metrics"]["loss"] < first / 2
