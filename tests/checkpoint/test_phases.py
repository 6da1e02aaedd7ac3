"""Programs that train several times: a finished phase is not repeated, and the right one is continued."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support import LIMIT_S

import sdk

from .runs import said, succeeded, sums, texts, trained

pytestmark = [pytest.mark.full, pytest.mark.tensorflow, pytest.mark.spread, pytest.mark.usefixtures("here")]

STEADY = {
    "checkpoints": sdk.Checkpoints(every_steps=3, on_busy="block"),
    "retry": sdk.Retry(infrastructure=2, preemptions=1),
}
TWO_FITS = """
import keras, numpy as np, sdk
x = np.random.default_rng(0).normal(size=(80, 4)).astype("float32")
y = x.sum(1, keepdims=True)
first = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(1)])
first.compile("adam", "mse")
one = first.fit(x, y, batch_size=8, epochs=2, verbose=0)
print("between", float(first.evaluate(x, y, verbose=0)).hex(), flush=True)
second = keras.Sequential([first, keras.layers.Dense(1)])
second.compile("sgd", "mse")
two = second.fit(x, y, batch_size=8, epochs=2, verbose=0)
print("histories", one.history, one.epoch, two.history, two.epoch, flush=True)
"""
FOLDS = """
import keras, numpy as np
x = np.random.default_rng(0).normal(size=(24, 4)).astype("float32")
y = x.sum(1, keepdims=True)
def made():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)], name="fold")
    model.compile("adam", "mse")
    return model
one, folds, scores = made(), [], []
for number in range(29):
    model = one if number % 3 else made()
    model.fit(x, y, batch_size=8, epochs=1, verbose=0)
    folds.append(model)
    scores.append(float(model.evaluate(x, y, verbose=0)).hex())
print("scores", scores, [float(fold.evaluate(x, y, verbose=0)).hex() for fold in folds], flush=True)
"""
TWO_OPTIMIZERS = """
import keras, numpy as np, tensorflow as tf
class Two(keras.Model):
    def __init__(self):
        super().__init__()
        self.left, self.right = keras.layers.Dense(1), keras.layers.Dense(1)
        self.noise = tf.random.Generator.from_seed(7)
    def call(self, x):
        return self.left(x) + self.right(x)
    def compile(self, optimizers):
        super().compile()
        self.optimizers = optimizers
    def train_step(self, data):
        x, y = data
        x = x + 0.1 * self.noise.normal(tf.shape(x))
        with tf.GradientTape(persistent=True) as tape:
            loss = tf.reduce_mean((self(x, training=True) - y) ** 2)
        for layer, optimizer in zip((self.left, self.right), self.optimizers):
            optimizer.apply(tape.gradient(loss, layer.trainable_variables), layer.trainable_variables)
        return {"loss": loss}
x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
model = Two()
model.compile([keras.optimizers.Adam(0.1), keras.optimizers.SGD(0.01, momentum=0.9)])
history = model.fit(x, x.sum(1, keepdims=True), batch_size=8, epochs=3, verbose=0)
print("histories", history.history, flush=True)
"""
LEGACY = """
import numpy as np, tensorflow as tf
x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
data = tf.data.Dataset.from_tensor_slices((x, x.sum(1, keepdims=True))).batch(8)
model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(3), tf.keras.layers.Dense(1)])
model.compile("adam", "mse")
history = model.fit(data, epochs=3, verbose=0)
print("histories", history.history, history.epoch, flush=True)
"""
# The machine is wanted back at the end of an epoch.
PREEMPTED = """
import os, signal, keras, numpy as np, tensorflow as tf
class Preempt(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        if batch == 7 and os.environ["PODLIFT_ATTEMPT"] == "1" and PREEMPTED:
            os.kill(os.getpid(), signal.SIGTERM)
x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
y = x.sum(1, keepdims=True)
data = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dropout(0.3), keras.layers.Dense(1)])
model.compile("adam", "mse", metrics=["mae"])
history = model.fit(data, epochs=3, validation_data=(x, y), verbose=0, callbacks=[Preempt()])
print("histories", history.history, history.epoch, flush=True)
"""
NOT_A_NUMBER = TWO_FITS.replace("x = ", "x = np.float32('nan') + ")
# The program, its kills, and the expected lines of its log, names of its variables and downgrades.
KILLED = {
    # First where nothing of the second fit is saved yet, then in the middle of it.
    "two fits": (TWO_FITS, ["step:21", "step:33"], ["restored its end of phase 1", "of phase 2"]),
    "any number of fits": (FOLDS, ["step:59", "step:86"], ["restored (step 2|its end) of phase (28|29)"]),
    "optimizers and state of its own": (TWO_OPTIMIZERS, ["step:13"], ["momentum", "velocity", "_state_var"]),
    # On a busy machine, step 16 may not have been saved when the task is killed.
    "tf_keras, behind the last epoch": (
        LEGACY,
        ["step:20"],
        ["restored step (8|16) of phase 1", "tf_keras starts its data over"],
    ),
    "a machine that is wanted back": (PREEMPTED, [], []),
    "a loss that is no number": (NOT_A_NUMBER, ["step:33"], [r"histories.*\bnan\b"]),
}


@pytest.mark.parametrize(("program", "kills", "told"), KILLED.values(), ids=KILLED)
def test_a_program_that_was_disturbed_ends_as_one_that_was_not(program: str, kills: list, told: list) -> None:
    job = {**STEADY, "code": sdk.Code(keras="legacy")} if program is LEGACY else STEADY
    undisturbed = succeeded(trained(program.replace("PREEMPTED", "False"), **job))
    disturbed = trained(program.replace("PREEMPTED", "True"), *kills, **job)
    succeeded(disturbed, 1 + len(kills) + (program is PREEMPTED))
    assert sums(disturbed) == sums(undisturbed)
    assert said(disturbed) == said(undisturbed)
    known = "\n".join([texts(disturbed), *sums(disturbed), *disturbed.checkpoints()[-1].downgrades])
    assert [pattern for pattern in told if not re.search(pattern, known)] == []


def test_a_checkpoint_of_another_model_is_refused_with_the_difference() -> None:
    run = trained(TWO_FITS + "raise SystemExit('a bug')", **STEADY)
    assert run.status().reason is sdk.Reason.USER_ERROR
    Path("train.py").write_text(TWO_FITS.replace("Dense(3)", "Dense(5)"))
    run.resume(code="current")
    assert run.wait(LIMIT_S).state is sdk.State.FAILED
    why = run.why()
    assert "sequential/dense/kernel" in why and "[4, 3]" in why and "[4, 5]" in why, why
    assert len(run.checkpoints()) >= 3, "saved checkpoints are untouched"


def test_without_protection_a_fit_is_saved_only_if_it_asks_for_it() -> None:
    unprotected = sdk.Checkpoints(auto=False)
    assert succeeded(trained(TWO_FITS, checkpoints=unprotected)).checkpoints() == []
    asked = TWO_FITS.replace("two = second.fit(x, y,", "two = second.fit(x, y, callbacks=sdk.context().callbacks(),")
    run = succeeded(trained(asked, checkpoints=unprotected))
    assert [entry.reason for entry in run.checkpoints()] == ["final"]


@pytest.mark.parametrize(("before", "now"), [(1, 2), (2, 1)])
def test_another_number_of_tasks_takes_over_parameters_and_optimizer(before: int, now: int) -> None:
    program = """
import keras, numpy as np, sdk
x = np.ones((64, 4), "float32")
with sdk.context().strategy.scope():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2), keras.layers.BatchNormalization()])
    model.compile("adam", "mse")
class Tell(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        if batch == 0: print("iterations", int(self.model.optimizer.iterations.numpy()), flush=True)
model.fit(x, np.zeros((64, 2)), batch_size=16, epochs=2, shuffle=False, verbose=0, callbacks=[Tell()])
"""
    first = succeeded(trained(program, resources=sdk.Resources(workers=before)))
    points = sdk.Checkpoints(resume_from=first.id)
    second = succeeded(trained(program, resources=sdk.Resources(workers=now), checkpoints=points))
    text = [line.text for line in second.logs(task="chief-0")]
    assert [line for line in text if line.startswith("iterations")] == ["iterations 8", "iterations 12"]
    assert any("restored the state of another run" in line for line in text)


def test_a_limit_of_steps_counts_the_steps_of_earlier_attempts() -> None:
    run = trained(TWO_FITS.replace("epochs=2", "epochs=20"), "step:17", limits=sdk.Limits(max_steps=12), **STEADY)
    assert succeeded(run, 2).status().saved_step == 24
