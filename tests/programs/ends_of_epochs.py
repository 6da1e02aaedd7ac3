"""Iterates over finite data by `fit`, `evaluate` and loops; prints results, the longest pauses, and what ended elsewhere."""

import itertools
import json
import sys
import time

import keras
import numpy as np
import tensorflow as tf

import sdk
from sdk.runtime.patches import iterator_ends

released = []
releaser, release = iterator_ends._RELEASER, iterator_ends._RELEASER._release
releaser._release = lambda held: (released.append(len(held.devices)), release(held))
releaser._over = "unchanged" in sys.argv
STEP_S, STEPS, EPOCHS = float(sys.argv[1]), int(sys.argv[2]), 3
strategy = sdk.context().strategy
moments = []


class Moments(keras.callbacks.Callback):
    """The processor stays idle in a step, as where another device computes."""

    def on_train_batch_begin(self, batch, logs=None):
        moments.append(time.monotonic())

    def on_train_batch_end(self, batch, logs=None):
        time.sleep(STEP_S)
        moments.append(time.monotonic())

    on_test_batch_begin = on_train_batch_begin
    on_test_batch_end = on_train_batch_end


random = np.random.default_rng(1)
x = random.normal(size=(STEPS * 16, 4)).astype("float32")
y = x.sum(axis=1, keepdims=True)
data = tf.data.Dataset.from_tensor_slices((x, y)).map(lambda x, y: (x * 2, y), num_parallel_calls=tf.data.AUTOTUNE)
data = data.batch(16).prefetch(tf.data.AUTOTUNE)
keras.utils.set_random_seed(1)
with strategy.scope():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.01), "mse")
found = model.fit(data, epochs=EPOCHS, validation_data=data, verbose=0, callbacks=[Moments()]).history
found["evaluate"] = model.evaluate(data, verbose=0, callbacks=[Moments()])
in_keras = len(released)


@tf.function
def step(batch):
    totals = strategy.run(lambda x, y: tf.reduce_sum(x) + tf.reduce_sum(y), args=batch)
    return strategy.reduce("SUM", totals, axis=None)


shared = strategy.experimental_distribute_dataset(data)
found["loop"] = []
for _ in range(EPOCHS):
    total = 0.0
    for batch in shared:
        moments.append(time.monotonic())
        total += float(step(batch))
        time.sleep(STEP_S)
    found["loop"].append(total)
found["plain"] = []
for _ in range(EPOCHS):
    total = 0.0
    for features, _labels in data:
        moments.append(time.monotonic())
        total += float(tf.reduce_sum(features))
        time.sleep(STEP_S)
    found["plain"].append(total)
found["weights"] = [float(each) for each in model.get_weights()[0].ravel()]
pauses = sorted((b - a for a, b in itertools.pairwise(moments)), reverse=True)
del batch, features
iter(data)  # waits for what was dropped
counts = {"in keras": in_keras, "in all": len(released)}
print("found " + json.dumps({"results": found, "pauses": pauses[:12], "released": counts}), flush=True)
