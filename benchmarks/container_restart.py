"""A task in a container of an emulated job is killed by SIGKILL: how long until the next step, beside other ways to start."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

import sdk
from sdk.testing.vertex import Cloud

from . import vertex

TITLE = "A killed task in a container"
_LIMIT_S = 300.0
_STEPS = 30
# Each task writes the time of each step to a folder of this machine.
_PROGRAM = """
import os, pathlib, time
import keras, tensorflow as tf
import sdk
strategy = tf.distribute.MultiWorkerMirroredStrategy() if "TF_CONFIG" in os.environ else tf.distribute.get_strategy()
with strategy.scope():
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(8, activation="relu"), keras.layers.Dense(1)])
    model.compile("adam", "mse")
data = tf.data.Dataset.from_tensors((tf.ones(8), tf.ones(1))).repeat(4000).batch(2)
folder = pathlib.Path(os.environ["STEPS_FOLDER"])
file = (folder / f"{sdk.context().task}.{os.environ['PODLIFT_ATTEMPT']}").open("w")
def wrote(batch, logs):
    file.write(f"{time.time()}\\n")
    file.flush()
    time.sleep(0.05)
model.fit(data, epochs=1, verbose=0, callbacks=[keras.callbacks.LambdaCallback(on_train_batch_end=wrote)])
"""


@dataclass(frozen=True, kw_only=True)
class Found:
    cold_s: float
    cold_cpu_s: float
    in_place_s: float
    in_place_cpu_s: float
    by_vertex_s: float
    by_vertex_cpu_s: float


def run(count: int) -> list[str]:
    """Return the section's lines."""
    lines = ["| | wall, s | CPU, s | relative to the cold start | relative to Vertex AI |", "|---|---|---|---|---|"]
    for workers in (1, 2):
        with tempfile.TemporaryDirectory() as folder, vertex.cloud_in(Path(folder) / "cloud", hold=False) as cloud:
            # The first round warms up.
            rounds = [_round(cloud, Path(folder) / str(number), workers) for number in range(count + 1)][1:]
        lines += _rows("one task" if workers == 1 else f"{workers} workers", rounds)
    return [
        *lines,
        "",
        f"Medians of {count} rounds; ratios are medians by round. In each round a job is submitted to the emulator (cold), a "
        f"task is killed after {_STEPS} steps (in place), and after as many steps one agent ends with exit code 134, as it "
        "did in a podlift without restarts in place, and the emulator starts that container again (by Vertex AI). CPU is "
        "that of all processes between both steps.",
    ]


def _rows(name: str, rounds: list[Found]) -> list[str]:
    def median(value: Callable[[Found], float]) -> float:
        return statistics.median(map(value, rounds))

    cold, vertex = median(lambda f: f.in_place_s / f.cold_s), median(lambda f: f.in_place_s / f.by_vertex_s)
    cold_cpu = median(lambda f: f.in_place_cpu_s / f.cold_cpu_s)
    return [
        f"| {name}, cold start | {median(lambda f: f.cold_s):.1f} | {median(lambda f: f.cold_cpu_s):.1f} | | |",
        f"| {name}, by Vertex AI | {median(lambda f: f.by_vertex_s):.1f} | {median(lambda f: f.by_vertex_cpu_s):.1f} | | |",
        f"| {name}, in place | {median(lambda f: f.in_place_s):.1f} | {median(lambda f: f.in_place_cpu_s):.1f} "
        f"| {cold:.2f} (CPU {cold_cpu:.2f}) | {vertex:.2f} |",
    ]


def _round(cloud: Cloud, folder: Path, workers: int) -> Found:
    steps = folder / "steps"
    steps.mkdir(parents=True)
    (folder / "train.py").write_text(_PROGRAM)
    settings = {"code_project": str(folder), "retry_infrastructure": 5, "env": {"STEPS_FOLDER": str(steps)}}
    begun, used = time.time(), _cpu_s()
    run = sdk.submit(str(folder / "train.py"), backend=cloud.backend(), workers=workers, **settings)
    victim = "chief-0" if workers == 1 else "worker-0"
    try:
        cold = _first_s(steps, workers, 1)
        cold_cpu_s = _cpu_s() - used
        _until(lambda: len(_times(steps, victim, 1)) >= _STEPS)
        killed, used = time.time(), _cpu_s()
        _task(run.id, victim, 1).kill()
        again = _first_s(steps, workers, 2)
        in_place_cpu_s = _cpu_s() - used
        _until(lambda: len(_times(steps, victim, 2)) >= _STEPS)
        stopped, used = time.time(), _cpu_s()
        task = _task(run.id, victim, 2)
        # The agent finds its task dead and itself asked to stop: it ends with 134.
        task.parent().terminate()
        task.kill()
        third = _first_s(steps, workers, 3)
        return Found(
            cold_s=cold - begun,
            cold_cpu_s=cold_cpu_s,
            in_place_s=again - killed,
            in_place_cpu_s=in_place_cpu_s,
            by_vertex_s=third - stopped,
            by_vertex_cpu_s=_cpu_s() - used,
        )
    finally:
        run.cancel(0)
        run.wait(_LIMIT_S)


def _first_s(folder: Path, workers: int, attempt: int) -> float:
    """Return when the last task of an attempt made its first step."""
    tasks = ["chief-0", *(f"worker-{number}" for number in range(workers - 1))]
    _until(lambda: all(_times(folder, task, attempt) for task in tasks))
    return max(_times(folder, task, attempt)[0] for task in tasks)


def _times(folder: Path, task: str, attempt: int) -> list[float]:
    path = folder / f"{task}.{attempt}"
    return [float(line) for line in path.read_text().split("\n")[:-1]] if path.exists() else []


def _task(run_id: str, task: str, attempt: int) -> psutil.Process:
    """Return a task's process as this machine sees it: in its container it has another number."""
    payload = f"/runs/{run_id}/attempts/{attempt:04d}/payload.json"
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            words = process.cmdline()
            if len(words) > 1 and words[-1:] == [task] and words[-2].endswith(payload):
                return process
    raise RuntimeError(f"{task} does not run")


def _cpu_s() -> float:
    """CPU seconds of this machine so far. Nothing else may run on it."""
    times = psutil.cpu_times()
    return float(times.user + times.system)


def _until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _LIMIT_S
    while not holds():
        if time.monotonic() > deadline:
            raise RuntimeError("the steps never came")
        time.sleep(0.02)
