"""A program that fails: the state of its training is saved on the way out, and the next attempt continues there."""

import textwrap
import threading
import time
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
from support import LIMIT_S, heard

import sdk
from sdk.checkpoint.contents import Contents
from sdk.checkpoint.manager import UnsavedState
from sdk.records.recorder import read_events
from sdk.runtime.hooks import rescue

from .runs import said, succeeded, sums, texts, trained

pytestmark = [pytest.mark.tensorflow, pytest.mark.usefixtures("here")]

# A fault that comes in one attempt, and not again.
HEAD = """
import os, time, keras, numpy as np, tensorflow as tf, sdk
ctx = sdk.context()
FIRST = os.environ["PODLIFT_ATTEMPT"] == "ATTEMPT" and FAULTY
x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
y = x.sum(1, keepdims=True)
with ctx.strategy.scope():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dropout(0.3), keras.layers.Dense(1)])
    model.compile("adam", "mse")
def data():
    return tf.data.Dataset.from_tensor_slices((x, y)).shuffle(64, seed=3).batch(8)
"""
# Eight steps an epoch.
FIT = f"""{HEAD}
class Fault(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None): self.at("batch_begin", batch)
    def on_train_batch_end(self, batch, logs=None): self.at("batch_end", batch)
    def on_epoch_begin(self, epoch, logs=None): self.epoch = epoch; self.at("epoch_begin", None)
    def on_epoch_end(self, epoch, logs=None): self.at("epoch_end", None)
    def on_test_batch_end(self, batch, logs=None): self.at("test_batch_end", batch)
    def at(self, name, batch):
        if FIRST and (self.epoch, name, batch) == WHERE:
            FAULT
plateau = keras.callbacks.ReduceLROnPlateau(monitor="loss", patience=0, min_delta=10.0, min_lr=1e-9)
history = model.fit(data(), epochs=3, validation_data=(x, y), verbose=0, callbacks=[plateau, Fault()])
print("history", history.history, flush=True)
"""
LOOP = f"""{HEAD}
def element(a, b):
    if FIRST and STEP.numpy() == 11 and WHERE == "data": raise RuntimeError("the fault")
    return a, b
STEP = tf.Variable(0, dtype=tf.int64)
optimizer = model.optimizer
optimizer.build(model.trainable_variables)
ckpt = ctx.checkpoint(model=model, optimizer=optimizer, data=data())
ckpt.restore()
for epoch in range(ckpt.epoch, 3):
    for a, b in ckpt.data:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(a, training=True) - b) ** 2)
        if FIRST and WHERE == "step" and ckpt.steps == 11: raise RuntimeError("the fault")
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        ckpt.step()
        if FIRST and WHERE == "behind" and ckpt.steps == 11: raise RuntimeError("the fault")
print("done", flush=True)
"""
RAISE = "raise RuntimeError('the fault')"


def submit(text: str, *kills: str, faulty: bool = True, workers: int = 1, **job: Any) -> sdk.Run:
    # An attempt that is killed comes before the one that fails.
    program = text.replace("FAULTY", str(faulty)).replace('"ATTEMPT"', repr("2" if kills else "1"))
    retry = sdk.Retry(user_errors=0, infrastructure=len(kills), preemptions=0)
    given = {"limits": sdk.Limits(grace_s=30), "retry": retry, "resources": sdk.Resources(workers=workers)}
    return trained(program, *kills, **{**given, **job})


def failed(run: sdk.Run, step: int | None, attempts: int = 1) -> None:
    """Require that the program has failed, with a state of this step saved."""
    status = run.status()
    found = (status.reason, status.attempts, status.saved_step)
    assert found == (sdk.Reason.USER_ERROR, attempts, step), run.why() + texts(run)


def fit(where: tuple, fault: str = RAISE) -> str:
    return FIT.replace("WHERE", repr(where)).replace("FAULT\n", textwrap.indent(fault, " " * 12).lstrip() + "\n")


def resumed(run: sdk.Run) -> sdk.Run:
    run.resume()
    run.wait(LIMIT_S)
    return succeeded(run, run.status().attempts)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[dict, dict]]:
    """Return a function that runs a program once and gives its end."""

    @cache
    def ended(text: str) -> tuple[dict, dict]:
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(tmp_path_factory.mktemp("undisturbed"))
            run = succeeded(submit(text, faulty=False))
            return sums(run), said(run)

    return ended


@pytest.mark.full
@pytest.mark.parametrize(
    ("where", "fault", "step"),
    [
        pytest.param((1, "batch_end", 3), RAISE, 12, id="batch-end"),
        pytest.param((1, "epoch_end", None), RAISE, 16, id="epoch-end"),
        pytest.param((1, "batch_begin", 3), RAISE, 11, id="batch-begin"),
        pytest.param((1, "test_batch_end", 0), RAISE, 16, id="validation"),
        pytest.param((2, "epoch_begin", None), RAISE, 16, id="epoch-begin"),
        pytest.param((1, "batch_end", 3), "raise KeyboardInterrupt", 12, id="interrupt"),
        pytest.param((1, "batch_end", 3), "raise SystemExit(3)", 12, id="exit"),
        pytest.param((1, "batch_end", 3), "raise MemoryError", 12, id="memory"),
    ],
)
def test_a_fit_that_was_ended_by_an_exception_goes_on_to_the_same_weights(undisturbed, where, fault, step) -> None:
    run = submit(fit(where, fault))
    failed(run, step)
    # On a slow machine the end of the epoch, step 16, has just been saved anyway.
    reason = run.checkpoints()[-1].reason
    assert reason == "failure" or step == 16
    way_out = f"podlift: saved on the way out, at step {step}\n" if reason == "failure" else ""
    assert f"If it is resumed, attempt 2 continues at step {step}." in run.why()
    assert f"{way_out}podlift: attempt 2 continues at step {step}" in texts(run)
    resumed(run)
    assert (sums(run), said(run)) == undisturbed(fit(()))


@pytest.mark.full
@pytest.mark.parametrize(("where", "step"), [("behind", 11), ("data", 11), ("step", None)])
def test_a_loop_that_was_ended_by_an_exception_goes_on_to_the_same_weights(undisturbed, where, step) -> None:
    program = LOOP.replace("WHERE", repr(where))
    if where == "data":
        mapped = "data=data().map(lambda a, b: tf.py_function(element, (a, b), (a.dtype, b.dtype)))"
        program = program.replace("data=data()", mapped)
        program = program.replace("        ckpt.step()\n", "        STEP.assign_add(1); ckpt.step()\n")
    run = submit(program)
    failed(run, step)
    if step is None:
        assert "no checkpoint was saved: attempt 2 starts from the beginning" in texts(run), "half a step is no state"
    assert sums(resumed(run)) == undisturbed(LOOP.replace("WHERE", "''"))[0]


@pytest.mark.full
def test_a_failure_does_not_save_weights_that_are_not_finite() -> None:
    fault = "self.model.layers[0].kernel.assign([[np.nan] * 3] * 4); " + RAISE
    run = submit(fit((1, "batch_end", 3), fault), checkpoints=sdk.Checkpoints(every_s=None))
    assert run.checkpoints() == []
    assert "not saved on the way out: sequential/dense/kernel holds NaN or infinity" in texts(run)
    assert "If it is resumed, no checkpoint was saved: attempt 2 starts from the beginning." in run.why()


@pytest.mark.shows("The state of `fit` is saved automatically")
@pytest.mark.shows("Kill any process at any time")
@pytest.mark.shows("a task is killed, at any instant")
@pytest.mark.shows("the program has a bug")
def test_two_tasks_that_are_killed_and_then_fail_alike_end_with_the_same_weights() -> None:
    normalized = "keras.layers.BatchNormalization(), keras.layers.Dropout"
    program = fit((2, "batch_end", 3)).replace("keras.layers.Dropout", normalized)
    undisturbed = submit(program, workers=2, faulty=False)
    run = submit(program, "validation:1", workers=2, checkpoints=sdk.Checkpoints(every_steps=3, on_busy="block"))
    failed(run, 20, attempts=2)
    assert run.checkpoints()[-1].reason == "failure"
    assert "restored step 6 of phase 1" in texts(run)
    assert "podlift: saved on the way out, at step 20\npodlift: attempt 3 continues at step 20" in texts(run)
    assert "If it is resumed, attempt 3 continues at step 20." in run.why()
    resumed(run)
    found = run.progress()
    assert found is not None and (found.epoch, found.epochs, found.epoch_step, found.epoch_steps) == (3, 3, 8, 8)
    assert (sums(run), said(run)) == (sums(undisturbed), said(undisturbed))
    for task in run.plan.tasks:
        spent = run.goodput(task)
        # Killed after step 8, it continued after step 6; the failure was saved.
        assert spent is not None and spent.steps_lost == 2
        assert sum(spent.parts.values()) == pytest.approx(run.status().timings["finished"], rel=0.01)
        assert min(spent.lost_to_failures_s, spent.compile_s, spent.step_s, spent.evaluation_s) > 0
        # Deterministic operations, which a drill switches on, exclude the clock that would measure the input.
        assert spent.checkpoint_s > 0 and spent.input_wait_s is None


@pytest.mark.full
def test_tasks_that_fail_alike_at_the_end_of_an_epoch_save_together() -> None:
    run = submit(fit((1, "epoch_end", None)), workers=2)
    failed(run, 16)
    resumed(run)
    undisturbed = submit(fit(()), workers=2, faulty=False)
    assert (sums(run), said(run)) == (sums(undisturbed), said(undisturbed))


@pytest.mark.full
def test_a_task_that_fails_alone_saves_nothing_and_its_error_is_known_in_time() -> None:
    fault = f"if ctx.task == 'worker-0': {RAISE}"
    limits, points = sdk.Limits(grace_s=2), sdk.Checkpoints(every_s=None)
    run = submit(fit((1, "epoch_end", None), fault), workers=2, limits=limits, checkpoints=points)
    assert run.checkpoints() == [], "its peer waits in a collective, with a part of the state that nobody else has"
    assert "not saved on the way out: not every task reached step 16 in time" in texts(run)
    assert "worker-0 failed: RuntimeError: the fault" in run.why()
    times = {event.kind: event.time for event in read_events(run.plan.paths, ("failed", "stopping"))}
    assert 0 < times["stopping"] - times["failed"] < 2 + 1


def test_a_save_on_the_way_out_is_given_up_in_time() -> None:
    class Stuck:
        rank, base, saved_step = 0, 0, 0

        @property
        def store(self):
            threading.Event().wait()

    said = heard()
    begun = time.monotonic()
    state = UnsavedState(phase=0, steps=3, contents=Contents(), at={})
    rescue.save(Stuck(), state, 0.2)
    assert time.monotonic() - begun < 5
    assert said == ["the state was not saved on the way out: it did not finish within 0.2 s"]


@pytest.mark.full
def test_after_a_step_that_failed_a_fit_goes_on_from_the_end_of_the_epoch_before(undisturbed) -> None:
    broken = """
class Faulty(keras.Sequential):
    def train_step(self, data):
        tf.py_function(self.fail, [self.optimizer.iterations.value], [])
        return super().train_step(data)
    def fail(self, step):
        if FIRST and int(step) == 11: raise RuntimeError("the fault")
"""
    program = fit(()).replace("with ctx.strategy", broken + "with ctx.strategy")
    program = program.replace("keras.Sequential([", "Faulty([")
    run = submit(program, checkpoints=sdk.Checkpoints(every_s=None))
    failed(run, 8)
    found, wanted = (
        sorted(value for path, value in each.items() if "dense" in path)  # the model has another name
        for each in (sums(resumed(run)), undisturbed(fit(()))[0])
    )
    assert found == wanted
