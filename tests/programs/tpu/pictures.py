"""The multi-worker tutorial's convolutional network on 28 x 28 pictures, with so many steps to an epoch."""

import keras
import numpy as np
import tensorflow as tf

import sdk

strategy = sdk.context().strategy


def pictures(batch):
    rng = np.random.default_rng(0)
    x, y = rng.random((2000, 28, 28), "float32"), rng.integers(0, 10, 2000).astype("int64")
    return tf.data.Dataset.from_tensor_slices((x, y)).shuffle(2000).repeat().batch(batch)


def network():
    made = keras.Sequential(
        [
            keras.Input((28, 28)),
            keras.layers.Reshape((28, 28, 1)),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(10),
        ]
    )
    made.compile(
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        optimizer=keras.optimizers.SGD(learning_rate=0.001),
        metrics=["accuracy"],
    )
    return made


with strategy.scope():
    model = network()
model.fit(pictures(64 * strategy.num_replicas_in_sync), epochs=3, steps_per_epoch=10)
model.save("model.keras")
