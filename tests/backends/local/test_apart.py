"""Several tasks that train without a connection: said once, by the first one, and only where it is so."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import pytest
from local_runs import codes, pid_of
from support import LIMIT_S, until

import sdk
from sdk.checkpoint import restore
from sdk.cli import watch
from sdk.storage.registry import open_store

pytestmark = [pytest.mark.process]

SERVERS = "_server_def = _collective_ops_server_def"
# As much of TensorFlow as is looked at.
FAKE = {
    "tensorflow/__init__.py": "from tensorflow.python.training import server_lib",
    "tensorflow/python/__init__.py": "",
    "tensorflow/python/training/__init__.py": "",
    "tensorflow/python/training/server_lib.py": "class Server:\n    def __init__(self, spec): pass",
    "tensorflow/python/eager/__init__.py": "",
    "tensorflow/python/eager/context.py": f"class Context: {SERVERS} = None\n_context = None",
}
REPORT = "sdk.context().report({'loss': 1.0}, step=1)"


@pytest.mark.parametrize(("server", "apart"), [("", True), ("tensorflow.server_lib.Server('spec')", False)])
def test_tasks_that_do_not_talk_to_each_other_are_said_to_train_apart(write, capsys, server: str, apart: bool) -> None:
    for path, content in FAKE.items():
        write(path, content)
    write("train.py", f"import tensorflow, sdk\n{server}\n{REPORT}\n{REPORT}")
    # A template would import the real TensorFlow before it finds out that the project has another one.
    run = sdk.submit("train.py", workers=2, local_start="spawn")
    assert run.wait(LIMIT_S).state is sdk.State.SUCCEEDED, run.why()
    words = "run this program without a connection"
    watch.follow(run, run.id)
    end = capsys.readouterr().err.partition(f"{run.id} is done")[2].partition("Next: podlift status")
    assert (words in end[0], words in end[2]) == (apart, False), "before the next step"
    assert [line.task for line in run.logs() if words in line.text] == ["chief-0"] * apart
    assert [words in text for text in run.status().findings] == [True] * apart
    assert (words in run.why()) == apart


@pytest.mark.full
def test_tasks_without_tensorflow_at_their_own_pace_all_save_after_a_cancel(submit) -> None:
    run = submit("""
        import sys, time
        import sdk

        ctx = sdk.context()
        while not ctx.should_stop():
            print("trains", flush=True)
            time.sleep(0.5 if ctx.task == "worker-0" else 0.002)
        print("saved", flush=True)
        sys.exit(75)
        """, workers=2)  # fmt: skip
    until(lambda: trained(run, 1) >= {*run.plan.tasks} and len(list(run.logs(task="chief-0"))) > 500, run.why)
    run.cancel(grace_s=20)
    status = run.wait(LIMIT_S)
    assert (status.state, codes(run, 1)) == (sdk.State.CANCELLED, [75, 75]), run.why()


@pytest.mark.full
def test_tasks_at_their_own_pace_are_preempted_and_cancelled_at_once(write) -> None:
    write("train.py", """
        import time
        import keras, sdk, tensorflow as tf

        pace = 1.0 if sdk.context().task == "worker-0" else 0.02
        def step(batch, logs):
            print("trains", flush=True)
            time.sleep(pace)
        slow = keras.callbacks.LambdaCallback(on_train_batch_end=step)
        model = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        data = tf.data.Dataset.from_tensors((tf.ones((4, 8)), tf.ones((4, 1)))).repeat(10)
        model.fit(data, epochs=1000, verbose=0, callbacks=[slow])
        """)  # fmt: skip
    about = {"checkpoints": sdk.Checkpoints(every_steps=7, every_s=1), "resources": sdk.Resources(workers=2)}
    run = sdk.submit(sdk.Job("train.py", retry=sdk.Retry(infrastructure=0, preemptions=None), **about))
    for attempt in (1, 2):
        until(lambda number=attempt: trained(run, number) >= {*run.plan.tasks}, run.why)
        if attempt == 1:
            os.kill(pid_of(run, "worker-0"), signal.SIGTERM)
    started = time.monotonic()
    run.cancel(grace_s=60)
    status = run.wait(LIMIT_S)
    # A store that waited for the other task's part would wait for two minutes.
    assert time.monotonic() - started < 60
    assert (status.state, status.attempts, codes(run, 2)) == (sdk.State.CANCELLED, 2, [0, 0]), run.why()
    said = [line.text for line in run.logs(task="chief-0")]
    (left,) = [int(match[1]) for text in said if (match := re.search(r"exits after step (\d+)", text))]
    assert any(f"restored step {left} of phase 1" in text for text in said), said
    others = "\n".join(line.text for line in run.logs(task="worker-0"))
    assert f"restored step {left} of phase 1" in others
    assert "holds the state of the first task alone" in others
    assert status.saved_step is not None and status.saved_step > left
    store = open_store(run.plan.paths.store)
    assert restore.newest(store, run_id=run.id).manifest.step == status.saved_step


def trained(run: sdk.Run, attempt: int) -> set[str]:
    folder = Path(run.plan.paths.attempt(attempt))
    return {line.task for line in run.logs(attempt=attempt) if line.text == "trains"} if folder.is_dir() else set()
