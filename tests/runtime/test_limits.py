"""`max_steps` ends every `fit`, and a loop that asks, early and cleanly: Keras 3 and tf_keras, alone and on two tasks."""

from __future__ import annotations

import json
import math
import textwrap
from itertools import groupby
from pathlib import Path

import pytest
from support import LONG_LIMIT_S as LIMIT_S

import sdk

pytestmark = pytest.mark.tensorflow

MAX_STEPS = 20
KERASES = ["keras", pytest.param("tf_keras", marks=pytest.mark.full)]

PROGRAM = """
    import json, os, sys

    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
    import keras, tf_keras
    import numpy as np
    import tensorflow as tf

    import sdk

    ctx = sdk.context()
    strategy = ctx.strategy
    alone = len(ctx.tasks) == 1
    found = {}


    def batches(count, rows=4):
        x = np.arange(count * rows * 2, dtype="float32").reshape(-1, 2) / 1000
        return tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(rows)


    def of_unknown_size(data):
        return data.filter(lambda x, y: True)


    def run(kind):
        class Watch(kind.callbacks.Callback):
            def __init__(self, stops=False, evaluates=False, strict=True):
                super().__init__()
                self.stops, self.evaluates, self.strict = stops, evaluates, strict
                self.seen, self.evaluated = [], 0

            def on_train_batch_end(self, batch, logs=None):
                self.seen.append("step")

            def on_test_begin(self, logs=None):
                self.seen.append("validation")

            def on_test_batch_end(self, batch, logs=None):
                self.seen.append("batch")

            def on_epoch_end(self, epoch, logs=None):
                self.seen.append(f"epoch {epoch}")
                if self.strict:
                    logs["val_loss"]  # as a program's own callback may ask
                if self.evaluates:
                    other = Watch()
                    self.model.evaluate(batches(30), verbose=0, callbacks=[other])
                    self.evaluated = other.seen.count("batch")
                self.model.stop_training |= self.stops

            def on_train_end(self, logs=None):
                self.seen.append("end")

        def build(**compiled):
            with strategy.scope():
                model = kind.Sequential([kind.layers.Input((2,)), kind.layers.Dense(1)])
                model.compile(optimizer=kind.optimizers.SGD(0.01), loss="mse", **compiled)
            return model

        def fit(name, data, model=None, watch=None, more=(), **options):
            if not alone and name not in ("long", "short"):
                return None  # TensorFlow takes a second to put away what it distributes for one fit
            model, watch = model or same, watch or Watch(strict="validation_data" in options)
            before = int(model.optimizer.iterations.numpy())
            history = model.fit(data, callbacks=[watch, *more], verbose=0, **options).history
            found[f"{kind.__name__} {name}"] = {
                "seen": watch.seen,
                "trained": int(model.optimizer.iterations.numpy()) - before,
                "val_loss": history.get("val_loss", []),
                "evaluated": watch.evaluated,
            }
            return None

        same = build()
        long, short, few = batches(100), batches(8), batches(3)
        fit("long", long, epochs=5, validation_data=batches(50))
        folder = os.path.join(ctx.dirs.checkpoints, kind.__name__)
        saved = kind.callbacks.ModelCheckpoint(folder + "/{epoch}-{val_loss:.2f}.weights.h5", save_weights_only=True)
        fit("short", short, epochs=10, validation_data=few, more=[saved])
        fit("impatient", short, epochs=9, validation_data=few, more=[kind.callbacks.EarlyStopping(patience=1)])
        fit("stopped", short, epochs=10, validation_data=few, watch=Watch(stops=True))
        fit("rare", short, epochs=10, validation_data=few, validation_freq=7, watch=Watch(strict=False))
        fit("resumed", short, initial_epoch=3, epochs=50, validation_data=few)
        fit("unvalidated", short, epochs=10)
        unknown = of_unknown_size(batches(50))
        fit("unknown", unknown, epochs=2, validation_data=unknown)
        endless = batches(9).repeat()
        fit("endless", endless, steps_per_epoch=7, epochs=9, validation_data=endless, validation_steps=50)
        fit("evaluating", long, validation_data=few, watch=Watch(evaluates=True))
        if alone:
            fit("executions", long, build(steps_per_execution=8), epochs=5, validation_data=batches(50))
            fit("last execution", batches(10), build(steps_per_execution=4), epochs=5)


    run({"keras": keras, "tf_keras": tf_keras}[sys.argv[1]])
    found["behind"] = next(n for n in range(1, 100) if ctx.should_stop())
    with open(f"{ctx.dirs.model}/{ctx.task}.json", "w") as file:
        json.dump(found, file)
"""


def trained(folder: Path, workers: int, kind: str) -> tuple[sdk.Run, list[dict]]:
    (folder / "train.py").write_text(textwrap.dedent(PROGRAM))
    limits = sdk.Limits(max_steps=MAX_STEPS, timeout_s=LIMIT_S)
    job = sdk.Job(folder / "train.py", args=[kind], resources=sdk.Resources(workers=workers), limits=limits)
    run = sdk.submit(job, root=folder / "root")
    model = Path(run.result(LIMIT_S).model_dir)
    return run, [json.loads((model / f"{task}.json").read_text()) for task in run.plan.tasks]


@pytest.fixture(scope="module", params=KERASES)
def alone(request, tmp_path_factory):
    _, (found,) = trained(tmp_path_factory.mktemp("alone"), 1, request.param)
    return {name.removeprefix(f"{request.param} "): case for name, case in found.items()}


@pytest.fixture(scope="module", params=KERASES)
def two(request, tmp_path_factory):
    return *trained(tmp_path_factory.mktemp("two"), 2, request.param), request.param


def told(case: dict) -> str:
    """The calls that a callback saw, in order: '8 x step, epoch 0, ...'."""
    runs = [(len(list(same)), word) for word, same in groupby(case["seen"])]
    return ", ".join(f"{count} x {word}" if word in ("step", "batch") else word for count, word in runs)


THREE_EPOCHS = "8 x step, epoch {0}, 8 x step, epoch {1}, 4 x step, validation, 3 x batch, epoch {2}, end"
IN_ONE_EPOCH = "20 x step, validation, {0} x batch, epoch 0, end"
CASES = {
    "long": IN_ONE_EPOCH.format(20),
    "short": THREE_EPOCHS.format(0, 1, 2),
    "rare": THREE_EPOCHS.format(0, 1, 2),
    "resumed": THREE_EPOCHS.format(3, 4, 5),
    "unvalidated": "8 x step, epoch 0, 8 x step, epoch 1, 4 x step, epoch 2, end",
    "unknown": IN_ONE_EPOCH.format(20),
    "endless": "7 x step, epoch 0, 7 x step, epoch 1, 6 x step, validation, 20 x batch, epoch 2, end",
    "stopped": "8 x step, epoch 0, 1 x step, validation, 3 x batch, epoch 1, end",
    "impatient": "8 x step, epoch 0, 8 x step, epoch 1, 1 x step, validation, 3 x batch, epoch 2, end",
    "last execution": "3 x step, epoch 0, 3 x step, epoch 1, end",  # of 4, 4 and 2 steps
}


@pytest.mark.parametrize("name", CASES)
def test_fit_ends_after_the_steps_with_one_validation_and_callbacks_see_a_clean_end(alone, name) -> None:
    assert told(alone[name]) == CASES[name]


@pytest.mark.full
@pytest.mark.parametrize("name", ["long", "short"])
def test_several_tasks_end_at_the_same_step_as_one(two, name) -> None:
    _, tasks, kind = two
    for found in tasks:
        assert told(found[f"{kind} {name}"]) == CASES[name]


def test_the_optimizer_has_made_these_steps_and_executions_of_several_are_not_cut(alone) -> None:
    assert [alone[name]["trained"] for name in ("long", "executions")] == [20, 24]


def test_epochs_without_their_expected_validation_have_a_val_loss_of_nan(alone) -> None:
    assert [math.isnan(value) for value in alone["short"]["val_loss"]] == [True, True, False]
    assert [math.isnan(value) for value in alone["rare"]["val_loss"]] == [False]


def test_an_evaluation_of_the_programs_own_is_left_alone(alone) -> None:
    assert alone["evaluating"]["evaluated"] == 30


@pytest.mark.full
def test_a_loop_that_asks_after_each_step_does_the_steps_in_every_task(two) -> None:
    assert [found["behind"] for found in two[1]] == [MAX_STEPS, MAX_STEPS]


@pytest.mark.full
def test_a_limited_run_succeeds_reports_its_metrics_and_logs_why_it_was_short(two) -> None:
    run, *_ = two
    assert run.status().state is sdk.State.SUCCEEDED
    steps = [record["step"] for record in run.metrics()]
    assert max(steps) == MAX_STEPS
    assert run.result().metrics["val_loss"] is not None
    for task in run.plan.tasks:
        assert any("fit ends after 20 steps: max_steps=20" in line.text for line in run.logs(task=task))


@pytest.mark.full
def test_checkpoints_named_after_a_validation_are_written_in_every_epoch(two) -> None:
    run, _, kind = two
    written = sorted(path.name for path in Path(run.plan.paths.checkpoints, kind).iterdir())
    assert [name.split("-")[0] for name in written] == ["1", "2", "3"]


def test_outside_any_run_nothing_has_to_stop_and_there_is_one_share(monkeypatch) -> None:
    monkeypatch.setattr("sdk.runtime.context._current", None)
    ctx = sdk.context()
    assert not any(ctx.should_stop() for _ in range(100))
    assert (ctx.inputs, ctx.shard()) == ({}, (0, 1))


def test_a_loop_that_asks_before_each_step_does_one_less(write) -> None:
    text = """
        import sdk
        ctx = sdk.context()
        done = 0
        while not ctx.should_stop():
            done += 1
        print(done)
    """
    write("train.py", text)
    run = sdk.submit(sdk.Job("train.py", limits=sdk.Limits(max_steps=5)))
    run.result(LIMIT_S)
    assert [line.text for line in run.logs()] == ["4"]
