"""Drills of real trainings: they pass if nothing is lost, and report the mistake of the program otherwise."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import LONG_LIMIT_S as LIMIT_S
from support import REPO

import sdk
from sdk.drill import DrillReport, run_drill, runs
from sdk.job.payload import Drill
from sdk.testing import tasks

pytestmark = [pytest.mark.spread]

FIT = """
    import keras
    import numpy as np
    x = np.arange(800, dtype="float32").reshape(200, 4) / 800
    layers = [keras.layers.Dense(8, activation="relu"), keras.layers.Dropout(0.2), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((4,)), *layers])
    model.compile("adam", "mse")
    y = x.sum(1, keepdims=True)
    model.fit(x, y, batch_size=10, epochs=3, validation_data=(x[:50], y[:50]), verbose=0)
"""
LOOP = """
    import sdk
    import tensorflow as tf
    hidden = 1.0
    weights = tf.Variable([1.0, 2.0])
    data = tf.data.Dataset.range(40).map(lambda i: tf.cast(i, tf.float32)).shuffle(40, seed=3).batch(4)
    ckpt = sdk.context().checkpoint(weights=weights, data=data)
    ckpt.restore()
    for epoch in range(ckpt.epoch, 3):
        for batch in ckpt.data:
            weights.assign(weights * 0.9 + tf.reduce_sum(batch) * tf.random.uniform([]) * hidden)
            {more}
            ckpt.step()
"""
# The state of its data takes a tenth of a second: 20,000 elements wait in the shuffle.
SHUFFLED = """
    import time
    import keras
    import numpy as np
    import tensorflow as tf
    keras.utils.set_random_seed(1)
    x = np.random.default_rng(0).random((20_000, 8), dtype="float32")
    data = tf.data.Dataset.from_tensor_slices((x, x.sum(1))).shuffle(20_000).batch(4).repeat()
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    slow = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: time.sleep(0.1))
    model.fit(data, steps_per_epoch=200, callbacks=[slow], verbose=0)
"""


def drill_by_command(*words: str) -> tuple[int, dict[str, Any], str]:
    """Return the exit code, the object of --json and the output on stderr."""
    command = [sys.executable, "-m", "sdk", "drill", "--json", *words]
    env = {**os.environ, "PYTHONPATH": str(REPO)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, env=env)
    return done.returncode, json.loads(done.stdout), done.stderr


@pytest.mark.process
@pytest.mark.full
def test_a_drill_with_runs_in_a_bucket_compares_their_objects(write, mine, tmp_path) -> None:
    write("train.py", FIT)
    root = "gs://mine/podlift"
    code, told, said = drill_by_command(
        "train.py", "--kill", "chief-0@step:13", "--checkpoint-every", "5steps", "--root", root
    )
    assert (code, told["verdict"], told["weights_equal"]) == (0, "passed", True), said
    assert (told["attempts"], told["steps"], told["kills"][0]["step"]) == (2, 60, 13)
    assert told["kills"][0]["restored"] in (5, 10)
    assert all(url.startswith(f"{root}/runs/") for url in told["runs"].values())
    # All of it is uploaded already.
    assert [info.status.state for info in sdk.runs(root=root)] == [sdk.State.SUCCEEDED] * 3
    assert not list((tmp_path / "here").glob("podlift/gs/*/*/runs/*/store"))


@pytest.mark.process
@pytest.mark.full
def test_a_fit_survives_kills_at_every_point(podlift_drill, write) -> None:
    write("train.py", FIT)
    points = [f"chief-0@{point}" for point in ("step:1", "step:13", "epoch:2", "validation:2", "save:9")]
    report: DrillReport = podlift_drill("train.py", kills=[*points, "random:2"], checkpoint_every="5steps")
    assert report.passed, report
    assert (len(report.kills), report.attempts) == (7, 8)


@pytest.mark.process
@pytest.mark.full
def test_a_drill_reports_the_first_array_that_differs_and_the_unseeded_line(write) -> None:
    text = """
        import sdk
        import numpy as np
        import tensorflow as tf
        noise = np.random.default_rng()
        fine = np.random.default_rng(0)
        weights = tf.Variable([1.0, 2.0])
        ckpt = sdk.context().checkpoint(weights=weights)
        while ckpt.steps < 20:
            weights.assign_add(noise.normal(size=2) if ckpt.steps >= 12 else fine.normal(size=2))
            ckpt.step()
        """
    write("train.py", text)
    report = run_drill("train.py", kills=["chief-0@step:9"], checkpoint_every="5steps")
    assert (report.verdict, report.exit_code, report.weights_equal) == ("not_reproducible", 1, None)
    assert [(source.file, source.line) for source in report.sources] == [("train.py", 5)]
    assert report.differences[0].step == 15, "the first checkpoint behind step 12"
    assert set(report.runs) == {"undisturbed", "again"}, "there is nothing to learn from killing it"


@pytest.mark.process
def test_a_program_that_saves_nothing_learns_the_needs_of_a_drill(podlift_drill, write, tmp_path: Path) -> None:
    write("train.py", "print('no training here')")
    code, told, _ = drill_by_command("train.py", "--kill", "random:1")
    assert (code, told["verdict"], told["weights_sha"]) == (1, "nothing_saved", None)
    report: DrillReport = podlift_drill("train.py", kills=["random:1"], workers=2, name="mine")
    assert report.runs["undisturbed"].startswith(f"{tmp_path}/podlift/runs/mine-drill-1-")
    with pytest.raises(sdk.InputError, match="Unknown setting 'killed'"):
        podlift_drill("train.py", killed=["random:1"])
    assert "add sdk.context().checkpoint(...) and its step() to your own loop" in str(report)


@pytest.mark.process
def test_a_program_that_fails_undisturbed_is_reported_with_its_traceback(write) -> None:
    write("train.py", "raise KeyError('column')")
    with pytest.raises(sdk.RunFailedError, match="column"):
        run_drill("train.py", kills=["random:1"])
    code, told, said = drill_by_command("train.py")
    assert (code, told["exit_code"], told["reason"]) == (1, 1, "user_error")
    assert "column" in said and "column" in told["problems"][0]


@pytest.mark.process
def test_unseeded_values_are_noted_where_the_program_asks_for_them_and_only_there(write) -> None:
    text = """
        import os, random, secrets, tempfile, threading, uuid
        from concurrent.futures import ThreadPoolExecutor
        import numpy as np
        os.urandom(4)                                # 5
        uuid.uuid4()
        random.seed()
        random.SystemRandom().random()
        random.Random()
        secrets.token_hex()                          # 10
        np.random.default_rng()
        np.random.RandomState()
        np.random.Generator(np.random.PCG64())
        threading.Thread(target=print).start()
        ThreadPoolExecutor().submit(print)           # 15
        np.random.seed()
        for _ in range(3): uuid.uuid4()
        random.seed(1); random.Random(2); np.random.default_rng(3); np.random.RandomState(4); np.random.seed(5)
        tempfile.mkdtemp()
        assert isinstance(np.random.mtrand._rand, np.random.RandomState)
        assert isinstance(np.random.RandomState(1), np.random.RandomState)
        assert not isinstance(1, np.random.RandomState)
        class Mine(np.random.RandomState): pass
        assert isinstance(Mine(1), Mine) and not isinstance(np.random.RandomState(1), Mine)
        """
    write("train.py", text)
    plan = replace(sdk.plan("train.py"), drill=Drill(seed=1))
    run = sdk.submit(plan)
    run.result(60)
    found = {source.line: source.what for source in runs.unseeded_calls(run)}
    assert set(found) == set(range(5, 18))
    assert found[12] == "numpy.random.RandomState() without a seed"


@pytest.mark.shows("`podlift drill` proves it")
@pytest.mark.process
def test_tasks_are_harmed_from_outside_and_missing_ones_are_reported(write) -> None:
    steps = "for step in range(6000): sdk.context().report({'x': step}, step=step); time.sleep(0.01)"
    write("train.py", f"import sdk, time\n{steps}")
    run = sdk.submit("train.py")
    tasks.wait_for_step(run, 2)
    with pytest.raises(sdk.InputError, match=r"no task 'chief-1'\. Did you mean 'chief-0'\?"):
        tasks.kill(run, "chief-1")
    tasks.kill(run, "chief-0")
    assert run.wait(60).reason is sdk.Reason.KILLED
    with pytest.raises(sdk.InputError, match="is not running"):
        tasks.preempt(run, "chief-0")


@pytest.mark.process
def test_an_interrupted_drill_takes_its_run_along(write, root: Path) -> None:
    write("train.py", "import time; time.sleep(600)")
    # A shell's background jobs and their children ignore Ctrl-C; this one is to heed it.
    heed = "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])"
    command = [sys.executable, "-c", heed, sys.executable, "-m", "sdk", "drill", "train.py"]
    env = {**os.environ, "PYTHONPATH": str(REPO)}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=env) as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("undisturbed: ")
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, "its run cancelled" in said) == (4, True)
    assert [info.status.state for info in sdk.runs(root=root)] == [sdk.State.CANCELLED]


@pytest.mark.process
@pytest.mark.full
def test_the_digits_job_passes_on_two_workers_under_kills_at_random_steps(root: Path) -> None:
    words = ["--workers", "2", "--kill", "worker-0@step:40", "--kill", "random:2", "--checkpoint-every", "10steps"]
    code, told, said = drill_by_command(str(REPO / "jobs" / "digits" / "train.py"), *words, "--", "--epochs", "3")
    assert (code, told["verdict"], told["kills_missed"]) == (0, "passed", []), said
    assert (told["steps"], told["attempts"], len(told["kills"])) == (72, 4, 3)


@pytest.mark.process
@pytest.mark.full
@pytest.mark.parametrize(("more", "verdict"), [("", "passed"), ("hidden += 1.0", "not_equal")])
def test_a_loop_passes_unless_it_keeps_state_outside_of_its_checkpoints(write, more: str, verdict: str) -> None:
    write("train.py", LOOP.format(more=more))
    report = run_drill("train.py", kills=["chief-0@step:17"], checkpoint_every="5steps")
    assert report.verdict == verdict, report
    if verdict == "not_equal":
        assert report.exit_code == 1
        assert report.differences[0].step == report.kills[0].restored + 5, "the first checkpoint behind the kill"
        assert report.notes == (f"The first checkpoint that differs follows this kill: {report.kills[0]}.",)


@pytest.mark.process
@pytest.mark.full
def test_a_fit_behind_a_large_shuffle_goes_on_with_the_same_weights(write) -> None:
    write("train.py", SHUFFLED)
    report = run_drill("train.py", kills=["chief-0@step:170"])
    assert report.verdict == "passed" and [bool(kill.restored) for kill in report.kills] == [True], report


@pytest.mark.process
@pytest.mark.full
def test_a_kill_at_a_point_that_is_never_reached_is_reported(podlift_drill, write) -> None:
    write("train.py", FIT)
    report: DrillReport = podlift_drill(
        "train.py", kills=["chief-0@step:61", "chief-0@epoch:2"], checkpoint_every="5steps"
    )
    assert (report.verdict, report.weights_equal, report.kills_missed) == ("kills_missed", True, ("chief-0@step:61",))
    assert [kill.step for kill in report.kills] == [40]


@pytest.mark.process
@pytest.mark.full
def test_a_training_that_ends_otherwise_when_it_is_killed_fails_the_drill(write) -> None:
    once = "\n    import os\n    assert int(os.environ['PODLIFT_ATTEMPT']) == 1, 'not twice'"
    write("train.py", once + LOOP.format(more=""))
    report = run_drill("train.py", kills=["chief-0@step:17"], checkpoint_every="5steps")
    assert (report.verdict, report.exit_code) == ("failed", 1)
    assert "not twice" in report.notes[-1]
