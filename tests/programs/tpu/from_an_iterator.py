"""Ray's quick start without Ray: a regression on rows that an iterator of Python hands out."""

import keras
import tensorflow as tf

import sdk

strategy = sdk.context().strategy


def rows():
    for number in range(1024):
        yield [float(number)], [3.0 * number + 1.0]


def as_dataset(batch):
    kind = tf.TensorSpec(shape=(1,), dtype=tf.float32)
    made = tf.data.Dataset.from_generator(rows, output_signature=(kind, kind))  # warning: python-input
    return made.batch(batch, drop_remainder=True)


with strategy.scope():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Flatten(), keras.layers.Dense(10), keras.layers.Dense(1)])
    model.compile(optimizer=keras.optimizers.SGD(0.001), loss="mean_squared_error", metrics=["mean_squared_error"])
for _ in range(2):
    model.fit(as_dataset(64), verbose=0)
