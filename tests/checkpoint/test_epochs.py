"""Beside a save every five minutes the end of an epoch is saved where that costs little, the same one in all tasks."""

import pytest

import sdk

from .runs import said, succeeded, sums, texts, trained

pytestmark = [pytest.mark.tensorflow, pytest.mark.full, pytest.mark.usefixtures("here")]

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
history = model.fit(data, epochs=2, verbose=0, callbacks=[Slow()])
print("history", history.history, history.epoch, flush=True)
"""
RARELY = {"retry": sdk.Retry(infrastructure=1), "checkpoints": sdk.Checkpoints(every_s=300)}


@pytest.mark.parametrize("tasks", [1, 2])
def test_a_kill_between_saves_by_time_costs_no_more_than_the_epoch(tasks: int) -> None:
    job = {"resources": sdk.Resources(workers=tasks), **RARELY}
    undisturbed = succeeded(trained(PROGRAM, **job))
    killed = succeeded(trained(PROGRAM, "step:13:last", **job), 2)
    first = [line.text for line in killed.logs() if line.task == killed.plan.tasks[0]]
    assert "podlift: attempt 2 continues at step 8" in first, first
    assert killed.status().continued_step == 8
    assert (sums(killed), said(killed)) == (sums(undisturbed), said(undisturbed))


def test_a_state_that_is_no_number_is_not_saved_at_the_end_of_an_epoch() -> None:
    nan = "time.sleep(1.5); self.model.layers[0].kernel.assign([[np.nan] * 3] * 4)"
    run = succeeded(trained(PROGRAM.replace("time.sleep(1.5)", nan).replace("SAVED()", "True"), **RARELY))
    assert [entry.reason for entry in run.checkpoints()] == ["final"], "the final state of the program is kept as it is"
    assert "holds NaN or infinity" in texts(run)
