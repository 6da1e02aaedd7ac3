"""Trains epochs over finite data on one core; `python epochs.py (as it is|autotune off|patched)` prints how long it took."""

import json
import os
import sys
import time
from pathlib import Path

way = sys.argv[1]
sys.path.insert(0, str(Path(__file__).parents[2]))
if way == "patched":
    from sdk.runtime.patches import install, iterator_ends

    install(iterator_ends.patches())
import keras  # noqa: E402
import tensorflow as tf  # noqa: E402

EPOCHS, STEPS, STEP_S, WAIT_S = 6, 60, 0.015, 0.3
CALLS, CALL_S = 150, 0.02
OPTIONS = tf.data.Options()
OPTIONS.autotune.enabled = way != "autotune off"


class Times(keras.callbacks.Callback):
    """The steps last as long as on a machine that computes elsewhere: the processor stays idle."""

    def __init__(self) -> None:
        super().__init__()
        self.steps_s, self.last, self.waits = 0.0, 0.0, 0

    def on_train_batch_begin(self, batch: int, logs: object = None) -> None:
        self.first = time.perf_counter()
        self.waits += 0 < self.last < self.first - WAIT_S

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        time.sleep(STEP_S)
        self.last = time.perf_counter()
        self.steps_s += self.last - self.first

    def on_train_end(self, logs: object = None) -> None:
        self.on_train_batch_begin(0)


def slow(x: object) -> object:
    time.sleep(CALL_S)
    return x


tf.constant(0)  # makes the threads of TensorFlow
cores = os.sched_getaffinity(0)
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
data = tf.data.Dataset.from_tensors((tf.ones(8), tf.ones(1))).repeat(4 * STEPS)
data = data.map(lambda x, y: (x, y), num_parallel_calls=tf.data.AUTOTUNE).batch(4).prefetch(tf.data.AUTOTUNE)
times = Times()
model.fit(data.with_options(OPTIONS), epochs=1, verbose=0)  # compiles
begun = time.perf_counter()
model.fit(data.with_options(OPTIONS), epochs=EPOCHS, verbose=0, callbacks=[times])
fit_s = time.perf_counter() - begun
os.sched_setaffinity(0, cores)
calls = tf.data.Dataset.range(CALLS).map(
    lambda x: tf.numpy_function(slow, [x], tf.int64), num_parallel_calls=tf.data.AUTOTUNE
)
begun = time.perf_counter()
for _ in calls.with_options(OPTIONS):
    pass
map_s = time.perf_counter() - begun
print(
    json.dumps({"fit_s": fit_s, "outside_s": fit_s - times.steps_s, "map_s": map_s, "waits": times.waits}), flush=True
)
os._exit(0)
