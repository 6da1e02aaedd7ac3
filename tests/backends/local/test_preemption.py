"""Preemption: after SIGTERM to one task all tasks save after the same step, exit, and continue later."""

from __future__ import annotations

import os
import re
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from local_runs import codes, pid_of
from support import LIMIT_S, until

import sdk
from sdk.checkpoint import manifest, restore
from sdk.cli import app
from sdk.storage.registry import open_store

pytestmark = [pytest.mark.tensorflow, pytest.mark.spread]

FIT = """
import time, keras, numpy as np, tensorflow as tf, sdk
ctx = sdk.context()
keras.utils.set_random_seed(1)
with ctx.strategy.scope():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dropout(0.2), keras.layers.Dense(1)])
    model.compile("adam", "mse")

class Tell(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        time.sleep(0.1)
        if batch % 5 == 0: print("training", flush=True)

data = tf.data.Dataset.from_tensor_slices((np.ones((STEPS * 8, 4), "float32"), np.ones((STEPS * 8, 1), "float32"))).batch(8)
model.fit(data, epochs=1, verbose=0, callbacks=[Tell()])
print("done", flush=True)
"""
LOOP = """
import os, time, tensorflow as tf, sdk
ctx = sdk.context()
with ctx.strategy.scope():
    total = tf.Variable(0, dtype=tf.int64)
ckpt = ctx.checkpoint(total=total, data=tf.data.Dataset.range(1, STEPS + 1))
print("restored", ckpt.restore(), flush=True)
for number in ckpt.data:
    total.assign_add(number)
    if os.environ["PODLIFT_ATTEMPT"] in SLOW: time.sleep(0.1)
    if ckpt.step() % 5 == 0: print("training", flush=True)
print("done", int(total), flush=True)
"""


def texts(run: sdk.Run, attempt: int | None = None) -> list[str]:
    return [f"{line.task}: {line.text}" for line in run.logs(attempt=attempt)]


def until_said(run: sdk.Run, word: str, attempt: int = 1) -> None:
    wanted = {f"{task}: {word}" for task in run.plan.tasks}
    until(lambda: Path(run.plan.paths.attempt(attempt)).is_dir() and wanted <= {*texts(run, attempt)}, run.why)


def job(**more: object) -> sdk.Job:
    return sdk.Job("train.py", retry=sdk.Retry(infrastructure=0, preemptions=None), **more)


@pytest.mark.shows("a machine is taken away")
@pytest.mark.shows("the run is cancelled")
def test_a_run_that_is_preempted_and_then_cancelled_goes_on_where_it_was_each_time(write) -> None:
    write("train.py", LOOP.replace("STEPS", "100").replace("SLOW", "'12'"))
    run = sdk.submit(job())
    until_said(run, "training")
    os.kill(pid_of(run, "chief-0"), signal.SIGTERM)
    until_said(run, "training", attempt=2)
    run.cancel(grace_s=30)
    status = run.wait(LIMIT_S)
    assert (status.state, status.attempts) == (sdk.State.CANCELLED, 2), run.why()
    assert (codes(run, 1), codes(run, 2)) == ([75], [0])
    said = "\n".join(texts(run))
    preempted, cancelled = (re.findall(rf"{words} after step (\d+)", said) for words in ("exits", "leaves its loop"))
    assert re.findall(r"restored step (\d+) of", said) == preempted, "not a step is lost"
    assert status.saved_step == sum(map(int, preempted + cancelled)), "the steps of both attempts"
    # Without its checkpoints it would begin anew: that is refused, with the known facts about them.
    store = Path(run.plan.paths.store)
    store.rename(store.with_name("aside"))
    with pytest.raises(sdk.InputError, match=r"according to its records step \d+ was saved.*submit a new run"):
        run.resume()
    store.with_name("aside").rename(store)
    # A newer one of another run, copied into its store, is passed over.
    theirs = replace(restore.newest(open_store(str(store))).manifest, run_id="other-aaaaaa", epoch=9)
    open_store(str(store)).put_new(theirs.key, [manifest.encode(theirs)])
    run.resume()
    assert run.wait(LIMIT_S).state is sdk.State.SUCCEEDED, run.why()
    assert any("It is a checkpoint of the run 'other-aaaaaa'" in text for text in texts(run))
    assert texts(run)[-1] == "chief-0: done 5050"
    assert f"restored step {status.saved_step} of phase 1" in "\n".join(texts(run, 3))


@pytest.mark.full
def test_a_fit_of_two_tasks_that_is_preempted_and_then_cancelled_loses_no_step(write, capsys) -> None:
    write("train.py", FIT.replace("STEPS", "3000"))
    run = sdk.submit(job(resources=sdk.Resources(workers=2)))
    until_said(run, "training")
    os.kill(pid_of(run, "worker-0"), signal.SIGTERM)
    until_said(run, "training", attempt=2)
    run.cancel(grace_s=30)
    status = run.wait(LIMIT_S)
    assert (status.state, status.attempts) == (sdk.State.CANCELLED, 2), run.why()
    said = "\n".join(texts(run))
    left = re.findall(r"exits after step (\d+)", said)
    assert len(left) == 2 and re.findall(r"restored step (\d+) of", said) == left, said
    assert sum(line.endswith(": done") for line in texts(run, 2)) == 2, "each program goes on behind its fit"
    assert status.saved_step > int(left[0]), "the steps of the second attempt are saved, too"
    assert app.run(["status", run.id]) == 0
    assert f"saved      step {status.saved_step}, the last step: nothing is lost\n" in capsys.readouterr().out


@pytest.mark.full
def test_another_run_starts_with_the_state_of_this_one(write) -> None:
    write("train.py", LOOP.replace("STEPS", "10").replace("SLOW", "''"))
    first = sdk.submit(job())
    assert first.wait(LIMIT_S).state is sdk.State.SUCCEEDED, first.why()
    second = sdk.submit(job(checkpoints=sdk.Checkpoints(resume_from=f"{first.id}@10")))
    assert second.wait(LIMIT_S).state is sdk.State.SUCCEEDED, second.why()
    assert texts(second)[-1] == "chief-0: done 110"
    with pytest.raises(sdk.InputError, match=r"no such checkpoint.*'7'.*Known steps: 10"):
        sdk.plan(job(checkpoints=sdk.Checkpoints(resume_from=f"{first.id}@7")))
    with pytest.raises(sdk.InputError, match="No such run"):
        sdk.plan(job(checkpoints=sdk.Checkpoints(resume_from="nobody-aaaaaa")))
