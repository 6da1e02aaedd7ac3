"""Beside a save every five minutes the end of an epoch is saved where that costs little, the same one in all tasks."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest
from support import LIMIT_S

import sdk
from sdk.checkpoint import restore
from sdk.job.payload import Drill, Kill
from sdk.storage.registry import open_store

pytestmark = [pytest.mark.tensorflow, pytest.mark.full]

# The first epoch takes so long that a save costs little beside it.
PROGRAM = """
import glob, os, time, keras, numpy as np, tensorflow as tf, sdk
SAVED = lambda: glob.glob(os.environ["PODLIFT_RUN"] + "/store/commits/*/*.json")
ctx = sdk.context()
with ctx.strategy.scope():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dropout(0.3), keras.layers.Dense(1)])
    model.compile("adam", "mse")
class Slow(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if self.model.optimizer.iterations == 4: time.sleep(1.5)
        until = time.monotonic() + 30
        while self.model.optimizer.iterations == 12 and not SAVED() and time.monotonic() < until: time.sleep(0.02)
x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
data = tf.data.Dataset.from_tensor_slices((x, x.sum(1, keepdims=True))).batch(8)
history = model.fit(data, epochs=EPOCHS, verbose=0, callbacks=[Slow()])
print("history", history.history, history.epoch, flush=True)
"""


def trained(text: str, *kills: tuple[str, int], **job) -> sdk.Run:
    Path("train.py").write_text(text)
    every = sdk.Checkpoints(every_s=300)
    plan = sdk.plan(sdk.Job("train.py", retry=sdk.Retry(infrastructure=1), checkpoints=every, **job))
    wanted = [Kill(task=task, point="step", number=step) for task, step in kills]
    run = sdk.submit(replace(plan, drill=Drill(seed=1, kills=tuple(wanted))))
    assert run.wait(LIMIT_S).state is sdk.State.SUCCEEDED, run.why() + "\n".join(line.text for line in run.logs())
    return run


def sums(run: sdk.Run) -> dict[str, str]:
    found = restore.newest(open_store(run.plan.paths.store))
    assert found is not None
    return {path: hashlib.sha256(array.data).hexdigest() for path, array in found.arrays.items()}


@pytest.mark.parametrize("tasks", [1, pytest.param(2, marks=pytest.mark.full)])
def test_a_kill_between_saves_by_time_costs_no_more_than_the_epoch(monkeypatch, tmp_path, tasks: int) -> None:
    monkeypatch.chdir(tmp_path)
    size = {"resources": sdk.Resources(workers=tasks)}
    undisturbed = trained(PROGRAM.replace("EPOCHS", "2"), **size)
    killed = trained(PROGRAM.replace("EPOCHS", "2"), (undisturbed.plan.tasks[-1], 13), **size)
    assert killed.status().attempts == 2
    said = [line.text for line in killed.logs() if line.task == killed.plan.tasks[0]]
    assert "podlift: attempt 2 continues at step 8" in said, said
    assert killed.status().continued_step == 8
    assert sums(killed) == sums(undisturbed)
    wanted = [line.text for line in undisturbed.logs() if line.text.startswith("history")]
    assert [line.text for line in killed.logs() if line.text.startswith("history")] == wanted


def test_a_state_that_is_no_number_is_not_saved_at_the_end_of_an_epoch(monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    nan = "time.sleep(1.5); self.model.layers[0].kernel.assign([[np.nan] * 3] * 4)"
    broken = PROGRAM.replace("time.sleep(1.5)", nan)
    run = trained(broken.replace("SAVED()", "True").replace("EPOCHS", "2"))
    assert [entry.reason for entry in run.checkpoints()] == ["final"], "what the program ends with is kept as it is"
    assert "holds NaN or infinity" in "\n".join(line.text for line in run.logs())
