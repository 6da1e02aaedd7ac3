"""Iterates over finite data by `fit`, `evaluate` and loops; prints the results, and how many iterators ended elsewhere."""

import json
import sys

import keras
import numpy as np
import tensorflow as tf

import sdk
from sdk.runtime.patches import iterator_ends

released = []
releaser, release = iterator_ends._RELEASER, iterator_ends._RELEASER._release
releaser._release = lambda held: (released.append(len(held.devices)), release(held))
releaser._over = "unchanged" in sys.argv
EPOCHS = 3
strategy = sdk.context().strategy
x = np.random.default_rng(1).normal(size=(128, 4)).astype("float32")
y = x.sum(axis=1, keepdims=True)
data = tf.data.Dataset.from_tensor_slices((x, y)).map(lambda x, y: (x * 2, y), num_parallel_calls=tf.data.AUTOTUNE)
data = data.batch(16).prefetch(tf.data.AUTOTUNE)
keras.utils.set_random_seed(1)
with strategy.scope():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.01), "mse")
found = model.fit(data, epochs=EPOCHS, validation_data=data, verbose=0).history
found["evaluate"] = model.evaluate(data, verbose=0)
in_keras = len(released)


@tf.function
def step(batch):
    totals = strategy.run(lambda x, y: tf.reduce_sum(x) + tf.reduce_sum(y), args=batch)
    return strategy.reduce("SUM", totals, axis=None)


shared = strategy.experimental_distribute_dataset(data)
found["loop"] = [sum(float(step(batch)) for batch in shared) for _ in range(EPOCHS)]
found["plain"] = [sum(float(tf.reduce_sum(features)) for features, _ in data) for _ in range(EPOCHS)]
found["weights"] = [float(each) for each in model.get_weights()[0].ravel()]
iter(data)  # waits for the dropped part
counts = {"in keras": in_keras, "in all": len(released)}
print("found " + json.dumps({"results": found, "released": counts}), flush=True)
