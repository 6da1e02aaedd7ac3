"""A training that prints the examples of each step. Words: fit, loop or legacy; shuffled, generated or unknown."""

import json
import sys
import time

import keras
import numpy as np
import tensorflow as tf

import sdk

STYLE, DATA = sys.argv[1:]
EPOCHS, EXAMPLES, BATCH = 3, 24, 6
ctx = sdk.context()
if len(ctx.tasks) > 1:
    strategy = ctx.strategy
else:
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def data():
    if DATA == "shuffled":
        made = tf.data.Dataset.range(EXAMPLES).shuffle(EXAMPLES)
    else:
        signature = tf.TensorSpec((), tf.int64)
        made = tf.data.Dataset.from_generator(lambda: iter(range(EXAMPLES)), output_signature=signature)
        if DATA == "generated":
            made = made.apply(tf.data.experimental.assert_cardinality(EXAMPLES))
    return made.batch(BATCH)


def tell(step, examples):
    print(json.dumps({"step": int(step), "examples": [int(i) for i in np.ravel(examples)]}), flush=True)
    time.sleep(0.05)
    return np.int32(0)


def fit():
    class Telling(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1)

        def call(self, x):
            return self.dense(tf.cast(x, tf.float32)[:, None])

        def train_step(self, batch):
            tf.py_function(tell, [self.optimizer.iterations, batch[0]], tf.int32)
            return super().train_step(batch)

    with strategy.scope():
        model = Telling()
        model.compile("sgd", "mse")
    model.fit(data().map(lambda i: (i, i)), epochs=EPOCHS, verbose=0)


def loop():
    with strategy.scope():
        total = tf.Variable(0, dtype=tf.int64)
    ckpt = ctx.checkpoint(total=total, data=strategy.experimental_distribute_dataset(data()))
    ckpt.restore()
    for _ in range(ckpt.epoch, EPOCHS):
        for batch in ckpt.data:
            parts = [part.numpy() for part in strategy.experimental_local_results(batch)]
            tell(ckpt.steps, np.concatenate(parts))
            ckpt.step()


{"fit": fit, "loop": loop}[STYLE]()
