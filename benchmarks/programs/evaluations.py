"""Times warm calls of `fit`, `evaluate` and `predict` on the same batches; `python evaluations.py FILE` writes them to it."""

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import sdk

BATCHES, SIZE, CALLS = (7, 100), 64, 5


def timed(call: Callable[[], object]) -> tuple[float, float]:
    """Return the medians of the seconds, and of the CPU seconds of this task."""
    call()
    spent = []
    for _ in range(CALLS):
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        call()
        spent.append((time.perf_counter() - wall_s, time.process_time() - cpu_s))
    return statistics.median(wall for wall, _ in spent), statistics.median(cpu for _, cpu in spent)


def main() -> None:
    keras.utils.set_random_seed(1)
    with sdk.context().strategy.scope():
        model = keras.Sequential([keras.Input((32,)), keras.layers.Dense(64, activation="relu"), keras.layers.Dense(4)])
        model.compile("sgd", "mse", metrics=["mae"])
    found: dict[str, tuple[float, float]] = {}
    for count in BATCHES:
        # The last batch is smaller.
        x = np.random.default_rng(0).normal(size=(SIZE * count - 10, 32)).astype("float32")
        data = tf.data.Dataset.from_tensor_slices((x, x[:, :4])).batch(SIZE)
        found[f"fit {count}"] = timed(lambda data=data: model.fit(data, verbose=0))
        found[f"evaluate {count}"] = timed(lambda data=data: model.evaluate(data, verbose=0))
        found[f"predict {count}"] = timed(lambda data=data: model.predict(data, verbose=0))
    if sdk.context().is_chief:
        Path(sys.argv[1]).write_text(json.dumps(found))


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    main()
