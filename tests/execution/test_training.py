"""Training in containers, whose tasks are forked: the weights after a kill, and a preemption before any training."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from .cloud import Cloud

# 30 steps in all, of some 0.1 s each, and the weights at the end.
FIT = """
import os, time
import numpy as np
import tensorflow as tf
import keras, sdk
strategy = tf.distribute.MultiWorkerMirroredStrategy() if "TF_CONFIG" in os.environ else tf.distribute.get_strategy()
keras.utils.set_random_seed(1)
random = np.random.default_rng(3)
x = random.normal(size=(80, 4)).astype("float32")
y = (x @ random.normal(size=(4, 1))).astype("float32")

class Slow(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        time.sleep(float(os.environ.get("SLOW_S", "0")))

with strategy.scope():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, activation="tanh"), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.05), "mse")
print("begins", sdk.context().task, os.environ["PODLIFT_ATTEMPT"], flush=True)
data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(80, seed=5, reshuffle_each_iteration=True).batch(16)
model.fit(data, epochs=6, verbose=0, callbacks=[Slow()])
print("weights", [round(float(np.sum(np.abs(w))), 6) for w in model.get_weights()], flush=True)
"""


def weights(container) -> str:
    found = re.findall(r"weights (\[.*\])", container.said)
    assert len(found) == 1, container.said
    return found[0]


def undisturbed(cloud: Cloud, settings) -> str:
    plain = cloud.plan("train.py", **settings)
    containers = cloud.start_all(plain, cloud.order(plain))
    codes = {task: each.code() for task, each in containers.items()}
    assert codes == dict.fromkeys(plain.tasks, 0), containers["chief-0"].said
    return weights(containers["chief-0"])


def children(container, program: str) -> list[psutil.Process]:
    found = psutil.Process(container.process.pid).children()
    return [each for each in found if program in " ".join(each.cmdline())]


def spare_of(container) -> list[psutil.Process]:
    return children(container, "template.py")


def task_of(container) -> psutil.Process:
    [found] = children(container, "task_main.py")
    return found


@pytest.mark.full
def test_a_killed_gang_is_forked_from_spare_processes_and_ends_with_equal_weights(cloud: Cloud, write) -> None:
    write("train.py", FIT)
    settings = {"resources": {"workers": 2}, "checkpoints": {"every_steps": 4}, "retry": {"infrastructure": 2}}
    expected = undisturbed(cloud, settings)
    plan = cloud.plan("train.py", **settings)
    containers = cloud.start_all(plan, cloud.order(plan), SLOW_S="0.5")
    cloud.until(lambda: all(map(spare_of, containers.values())), "spare processes", *containers.values())
    cloud.until(lambda: cloud.events(plan, "saved"), "a checkpoint", *containers.values())
    for each in containers.values():
        assert spare_of(each)[0].create_time() < task_of(each).create_time(), "the first attempt was not forked"
    task_of(containers["worker-0"]).kill()
    codes = {task: each.code() for task, each in containers.items()}
    assert codes == dict.fromkeys(plan.tasks, 0), containers["chief-0"].said
    assert not any("was not forked" in each.said for each in containers.values()), containers["chief-0"].said
    assert re.search(r"restored step \d+ of phase 1", containers["chief-0"].said)
    assert weights(containers["chief-0"]) == expected
    assert [event.attempt for event in cloud.events(plan, "attempt_started")] == [1, 2]


# It is in no training that would save, and TensorFlow has connected the workers.
CONNECTED = """
import os, time, sdk
sdk.context().strategy
print("connected", os.environ["PODLIFT_ATTEMPT"], flush=True)
time.sleep(600 if os.environ["PODLIFT_ATTEMPT"] == "1" else 0)
"""


@pytest.mark.full
@pytest.mark.parametrize("victim", ["chief-0", "worker-0"])
def test_a_container_that_is_preempted_before_its_training_ends_at_once(cloud: Cloud, write, victim: str) -> None:
    write("train.py", CONNECTED)
    plan = cloud.plan("train.py", resources={"workers": 2}, retry={"preemptions": None})
    words = cloud.order(plan)
    containers = cloud.start_all(plan, words)
    for container in containers.values():
        cloud.until(lambda: "connected 1" in container.said, "it is connected", *containers.values())  # noqa: B023
    containers[victim].process.send_signal(signal.SIGTERM)
    assert containers[victim].code() == 134, containers[victim].said
    exits = {event.data["task"]: event.data for event in cloud.events(plan, "exited")}
    assert (exits[victim]["code"], exits[victim]["reason"]) == (-signal.SIGTERM, "preempted")
    containers[victim] = cloud.start(plan, words, victim)
    assert {task: each.code() for task, each in containers.items()} == dict.fromkeys(plan.tasks, 0)
    assert {event.data["reason"] for event in cloud.events(plan, "restarting")} == {"preempted"}


Fake = Callable[[str], dict[str, str]]
FORKED = "import os, sdk, tensorflow\nprint('ran', sdk.context().task, os.environ['PODLIFT_TASK'], flush=True)"


@pytest.fixture
def counted(tmp_path: Path) -> Path:
    """The file to which each import of the fake TensorFlow adds one letter."""
    return tmp_path / "count"


@pytest.fixture
def fake(tmp_path: Path, counted: Path) -> Fake:
    """Return the variables with which a module of this text is TensorFlow."""
    place = tmp_path / "fake"
    place.mkdir()
    counted.touch()

    def make(text: str = "") -> dict[str, str]:
        (place / "tensorflow.py").write_text(f"open({str(counted)!r}, 'a').write('x')\n{text}\n")
        return {"PYTHONPATH": f"{place}:{':'.join(path for path in sys.path if path.endswith('site-packages'))}"}

    return make


def test_a_tasks_modules_are_imported_once_and_while_others_are_awaited(cloud: Cloud, write, fake, counted) -> None:
    write("train.py", FORKED)
    plan = cloud.plan("train.py", resources={"workers": 2})
    words, env = cloud.order(plan, preload=["tensorflow"]), fake()
    chief = cloud.start(plan, words, **env)
    cloud.until(lambda: counted.read_text(), "an import", chief)
    assert not cloud.events(plan, "attempt_started")
    worker = cloud.start(plan, words, "worker-0", **env)
    assert (chief.code(), worker.code()) == (0, 0), chief.said + worker.said
    assert "ran chief-0 chief-0" in chief.said and "ran worker-0 worker-0" in worker.said
    assert counted.read_text() == "xx"


def test_a_container_that_is_stopped_while_it_waits_leaves_no_process_behind(cloud: Cloud, write, fake: Fake) -> None:
    write("train.py", FORKED)
    plan = cloud.plan("train.py", resources={"workers": 2})
    chief = cloud.start(plan, cloud.order(plan, preload=["tensorflow"]), **fake("import time; time.sleep(60)"))
    cloud.until(lambda: "waiting for worker-0" in chief.said, "a wait", chief)
    known = psutil.Process(chief.process.pid).children(recursive=True)
    assert known
    chief.process.terminate()
    assert chief.code() == 134, chief.said
    assert list(cloud.folder.glob("tmp-0/*")) == []
    assert psutil.wait_procs(known, timeout=20)[1] == []


@pytest.mark.full
def test_a_task_that_cannot_be_forked_starts_by_itself_and_ends_later_preloads(cloud, write, fake, counted) -> None:
    steps = "import time\nfor step in range(25): sdk.context().report({'step': step}, step=step); time.sleep(0.1)"
    write("train.py", f"{FORKED}\n{steps}")
    plan = cloud.plan("train.py")
    thread = "import threading, time; threading.Thread(target=time.sleep, args=[600], daemon=True).start()"
    container = cloud.start(plan, cloud.order(plan, preload=["tensorflow"]), **fake(thread))
    assert container.code() == 0, container.said
    assert container.said.count("the task was not forked: 2 threads") == 1
    assert counted.read_text() == "xx"
