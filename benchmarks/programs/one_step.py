"""The training program of the workers benchmark: one step of a small model in each task, which then waits to be measured.

It writes the times of its first line, of the end of its imports and of the end of its step, and what memory it then has.
"""

import time

FIRST_LINE = time.time()

import json  # noqa: E402
import os  # noqa: E402
from pathlib import Path  # noqa: E402

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

IMPORTED = time.time()
FOLDER = Path(os.environ["MEASURED"])
LIMIT_S = 300


def wait_for(kind: str, count: int) -> None:
    until = time.monotonic() + LIMIT_S
    while len(list(FOLDER.glob(f"*.{kind}"))) < count and time.monotonic() < until:
        time.sleep(0.05)


def memory_mb() -> float:
    """Return this process's part of the memory: what it shares with others counts by the part that falls to each."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(32, activation="relu"), keras.layers.Dense(1)])
optimizer = keras.optimizers.SGD(0.01)
optimizer.build(model.trainable_variables)


@tf.function
def step(batch):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(model(batch, training=True) ** 2)
    optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
    return loss


float(step(tf.constant(np.ones((8, 16), "float32"))))
STEPPED = time.time()

task, count = os.environ["PODLIFT_TASK"], int(os.environ["WORKERS"])
(FOLDER / f"{task}.stepped").touch()
wait_for("stepped", count)
found = {"first_line": FIRST_LINE, "imported": IMPORTED, "stepped": STEPPED, "memory_mb": memory_mb()}
(FOLDER / f"{task}.json").write_text(json.dumps(found))
wait_for("json", count)
