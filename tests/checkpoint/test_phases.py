"""Programs that train several times: what is finished is not done again, and what is gone on with is the right thing."""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace
from pathlib import Path

import pytest
from support import LIMIT_S

import sdk
from sdk.checkpoint import restore
from sdk.job.payload import Drill, Kill
from sdk.storage.registry import open_store

pytestmark = [pytest.mark.tensorflow, pytest.mark.spread]

TWO_FITS = """
import keras, numpy as np
x = np.random.default_rng(0).normal(size=(80, 4)).astype("float32")
y = x.sum(1, keepdims=True)
first = keras.Sequential([keras.Input((4,)), keras.layers.Dense(WIDTH), keras.layers.Dense(1)])
first.compile("adam", "mse")
one = first.fit(x, y, batch_size=8, epochs=2, verbose=0)
print("between", float(first.evaluate(x, y, verbose=0)).hex(), flush=True)
second = keras.Sequential([first, keras.layers.Dense(1)])
second.compile("sgd", "mse")
two = second.fit(x, y, batch_size=8, epochs=2, verbose=0)
print("histories", one.history, one.epoch, two.history, two.epoch, flush=True)
"""


def trained(text: str, *killed: str, **job) -> sdk.Run:
    Path("train.py").write_text(text)
    points = sdk.Checkpoints(every_steps=3, on_busy="block")
    plan = sdk.plan(sdk.Job("train.py", checkpoints=points, retry=sdk.Retry(infrastructure=2, preemptions=1), **job))
    kills = []
    for kill in killed:
        moment, _, number = kill.partition(":")
        kills.append(Kill(task=plan.tasks[0], point=moment, number=int(number)))
    run = sdk.submit(replace(plan, drill=Drill(seed=1, kills=tuple(kills))))
    run.wait(LIMIT_S)
    return run


def sums(run: sdk.Run) -> dict[str, str]:
    found = restore.newest(open_store(run.plan.paths.store))
    assert found is not None
    return {path: hashlib.sha256(array.data).hexdigest() for path, array in found.arrays.items()}


def said(run: sdk.Run, word: str) -> str:
    return [line.text for line in run.logs() if line.text.startswith(word)][-1]


@pytest.mark.full
def test_a_fit_that_is_finished_is_left_out_with_its_history_and_its_weights(monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    program = TWO_FITS.replace("WIDTH", "3")
    undisturbed = trained(program)
    assert undisturbed.status().state is sdk.State.SUCCEEDED, undisturbed.why()
    # First where nothing of the second is saved yet, then in the middle of it.
    killed = trained(program, "step:21", "step:33")
    assert (killed.status().state, killed.status().attempts) == (sdk.State.SUCCEEDED, 3), killed.why()
    assert sums(killed) == sums(undisturbed)
    assert said(killed, "between") == said(undisturbed, "between")
    assert said(killed, "histories") == said(undisturbed, "histories")
    text = "\n".join(line.text for line in killed.logs())
    assert "restored its end of phase 1" in text
    assert "of phase 2" in text


@pytest.mark.full
def test_any_number_of_fits_continues_at_the_one_that_was_interrupted(monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    program = """
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
    undisturbed = trained(program)
    assert undisturbed.status().state is sdk.State.SUCCEEDED, undisturbed.why()
    killed = trained(program, "step:59", "step:86")
    assert (killed.status().state, killed.status().attempts) == (sdk.State.SUCCEEDED, 3), killed.why()
    assert sums(killed) == sums(undisturbed)
    assert said(killed, "scores") == said(undisturbed, "scores")
    assert re.search("restored (step 2|its end) of phase (28|29)", "\n".join(line.text for line in killed.logs()))


@pytest.mark.full
def test_a_checkpoint_of_another_model_is_refused_with_what_differs(monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    run = trained(TWO_FITS.replace("WIDTH", "3") + "raise SystemExit('a bug')")
    assert run.status().reason is sdk.Reason.USER_ERROR
    Path("train.py").write_text(TWO_FITS.replace("WIDTH", "5"))
    run.resume(code="current")
    assert run.wait(LIMIT_S).state is sdk.State.FAILED
    why = run.why()
    assert "sequential/dense/kernel" in why and "[4, 3]" in why and "[4, 5]" in why, why
    assert len(run.checkpoints()) >= 3, "what was saved is untouched"


@pytest.mark.full
def test_fit_without_protection_saves_nothing(monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(TWO_FITS.replace("WIDTH", "3"))
    run = sdk.submit(sdk.Job("train.py", checkpoints=sdk.Checkpoints(auto=False)))
    assert run.wait(LIMIT_S).state is sdk.State.SUCCEEDED
    assert run.checkpoints() == []


@pytest.mark.full
@pytest.mark.parametrize(("before", "now"), [(1, 2), pytest.param(2, 1, marks=pytest.mark.full)])
def test_another_number_of_tasks_takes_over_parameters_and_optimizer(
    monkeypatch, tmp_path, before: int, now: int
) -> None:
    monkeypatch.chdir(tmp_path)
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
    Path("train.py").write_text(program)
    first = sdk.submit(sdk.Job("train.py", resources=sdk.Resources(workers=before)))
    assert first.wait(LIMIT_S).state is sdk.State.SUCCEEDED, first.why()
    points = sdk.Checkpoints(resume_from=first.id)
    second = sdk.submit(sdk.Job("train.py", resources=sdk.Resources(workers=now), checkpoints=points))
    assert second.wait(LIMIT_S).state is sdk.State.SUCCEEDED, second.why()
    text = [line.text for line in second.logs(task="chief-0")]
    assert [line for line in text if line.startswith("iterations")] == ["iterations 8", "iterations 12"]
    assert any("restored the state of another run" in line for line in text)


@pytest.mark.full
def test_a_fit_that_asks_for_it_is_protected_where_others_are_not(monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    text = TWO_FITS.replace("WIDTH", "3").replace("import keras", "import sdk, keras")
    Path("train.py").write_text(
        text.replace("two = second.fit(x, y,", "two = second.fit(x, y, callbacks=sdk.context().callbacks(),")
    )
    run = sdk.submit(sdk.Job("train.py", checkpoints=sdk.Checkpoints(auto=False)))
    assert run.wait(LIMIT_S).state is sdk.State.SUCCEEDED, run.why()
    assert [entry.reason for entry in run.checkpoints()] == ["final"]


@pytest.mark.full
def test_a_model_with_optimizers_and_state_of_its_own_is_continued(monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    program = """
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
    undisturbed, killed = trained(program), trained(program, "step:13")
    assert undisturbed.status().state is sdk.State.SUCCEEDED, undisturbed.why()
    assert (killed.status().state, killed.status().attempts) == (sdk.State.SUCCEEDED, 2), killed.why()
    names = " ".join(sums(killed))
    assert "momentum" in names and "velocity" in names and "_state_var" in names, names
    assert sums(killed) == sums(undisturbed)
    assert said(killed, "histories") == said(undisturbed, "histories")


@pytest.mark.full
def test_tf_keras_goes_on_behind_the_last_epoch(monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    program = """
import numpy as np, tensorflow as tf
x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
data = tf.data.Dataset.from_tensor_slices((x, x.sum(1, keepdims=True))).batch(8)
model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(3), tf.keras.layers.Dense(1)])
model.compile("adam", "mse")
history = model.fit(data, epochs=3, verbose=0)
print("histories", history.history, history.epoch, flush=True)
"""
    legacy = sdk.Code(keras="legacy")
    undisturbed, killed = trained(program, code=legacy), trained(program, "step:20", code=legacy)
    assert undisturbed.status().state is sdk.State.SUCCEEDED, undisturbed.why()
    assert (killed.status().state, killed.status().attempts) == (sdk.State.SUCCEEDED, 2), killed.why()
    assert sums(killed) == sums(undisturbed)
    assert said(killed, "histories") == said(undisturbed, "histories")
    # On a busy machine, step 16 may not have been saved when the task is killed.
    assert re.search("restored step (8|16) of phase 1", "\n".join(line.text for line in killed.logs()))
    assert "tf_keras begins its data anew" in killed.checkpoints()[-1].downgrades[0]


@pytest.mark.full
def test_a_machine_that_is_wanted_back_at_the_end_of_an_epoch(monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    program = """
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
    undisturbed = trained(program.replace("PREEMPTED", "False"))
    preempted = trained(program.replace("PREEMPTED", "True"))
    assert (preempted.status().state, preempted.status().attempts) == (sdk.State.SUCCEEDED, 2), preempted.why()
    assert sums(preempted) == sums(undisturbed)
    assert said(preempted, "histories") == said(undisturbed, "histories")


@pytest.mark.full
@pytest.mark.xdist_group("forked")
@pytest.mark.usefixtures("warm_tensorflow")
def test_a_limit_of_steps_counts_those_of_earlier_attempts(monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    program = TWO_FITS.replace("WIDTH", "3").replace("epochs=2", "epochs=20")
    run = trained(program, "step:17", limits=sdk.Limits(max_steps=12))
    assert (run.status().state, run.status().attempts) == (sdk.State.SUCCEEDED, 2), run.why()
    assert run.status().saved_step == 24


@pytest.mark.full
def test_a_loss_that_is_no_number_is_saved_and_continued(monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    program = TWO_FITS.replace("WIDTH", "3").replace("x = ", "x = np.float32('nan') + ")
    undisturbed, killed = trained(program), trained(program, "step:33")
    assert undisturbed.status().state is sdk.State.SUCCEEDED, undisturbed.why()
    assert (killed.status().state, killed.status().attempts) == (sdk.State.SUCCEEDED, 2), killed.why()
    assert "nan" in said(killed, "histories")
    assert said(killed, "histories") == said(undisturbed, "histories")
