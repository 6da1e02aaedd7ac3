"""Cancelling: tasks that train leave their loops behind the same step, and have time to save what they have."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support import LIMIT_S, until

import sdk

pytestmark = [pytest.mark.tensorflow, pytest.mark.usefixtures("warm_podlift")]

# Two tasks in lockstep, as training with collectives is: no step ends before both take part in it.
LOOP = """
import pathlib, time, sdk
ctx = sdk.context()
shared, step = pathlib.Path(ctx.dirs.checkpoints), 0
while True:
    step += 1
    (shared / f"{ctx.task}-{step}").touch()
    while not all((shared / f"{task}-{step}").exists() for task in ctx.tasks):
        time.sleep(0.001)
    if step == 5:
        print("training", flush=True)
    if ctx.should_stop():
        break
print("saved after", step, flush=True)
"""
FIT = """
import time, keras, numpy as np, sdk
ctx = sdk.context()
with ctx.strategy.scope():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")

class Tell(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        time.sleep(0.05)
        if batch == 5: print("training", flush=True)

history = model.fit(np.ones((80_000, 4)), np.ones((80_000, 1)), batch_size=8, epochs=9, verbose=0, callbacks=[Tell()])
print("saved after", len(history.epoch), "epochs", flush=True)
"""


def texts(run: sdk.Run, task: str) -> list[str]:
    return [line.text for line in run.logs(task=task)]


@pytest.mark.parametrize("program", [LOOP, pytest.param(FIT, marks=pytest.mark.full)], ids=["loop", "fit"])
def test_all_tasks_leave_their_loops_behind_the_same_step_and_end_by_themselves(write, program: str) -> None:
    write("train.py", program)
    run = sdk.submit("train.py", workers=2)
    until(lambda: all("training" in texts(run, task) for task in run.plan.tasks), run.why)
    run.cancel(grace_s=30)
    status = run.wait(LIMIT_S)
    assert status.state is sdk.State.CANCELLED
    said = "\n".join(text for task in run.plan.tasks for text in texts(run, task))
    steps = re.findall(r"leaves its loop after step (\d+)", said)
    assert len(steps) == 2 and len(set(steps)) == 1, said
    assert len(re.findall("saved after", said)) == 2
    codes = [path.read_text() for path in Path(run.plan.paths.events).glob("*.exited.json")]
    assert ['"code": 0' in text for text in codes] == [True, True]


def test_without_any_grace_nobody_waits_for_a_step(write) -> None:
    write("train.py", "import sdk, time\nwhile True:\n    sdk.context().should_stop()\n    time.sleep(0.01)")
    run = sdk.submit("train.py")
    until(Path(run.plan.paths.progress(1, "chief-0")).exists, run.why)
    run.cancel(grace_s=0)
    assert run.wait(LIMIT_S).state is sdk.State.CANCELLED
