"""The Keras guide's two dense layers on flat pictures: fit with validation, then evaluate. The data is made up."""

import keras
import numpy as np
import tensorflow as tf

resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="")
tf.config.experimental_connect_to_cluster(resolver)
tf.tpu.experimental.initialize_tpu_system(resolver)
strategy = tf.distribute.TPUStrategy(resolver)
print("replicas:", strategy.num_replicas_in_sync)


def network():
    pictures = keras.Input(shape=(784,))
    hidden = keras.layers.Dense(256, activation="relu")(pictures)
    hidden = keras.layers.Dense(256, activation="relu")(hidden)
    made = keras.Model(pictures, keras.layers.Dense(10)(hidden))
    made.compile(
        optimizer=keras.optimizers.Adam(),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=[keras.metrics.SparseCategoricalAccuracy()],
    )
    return made


def digits(count):
    rng = np.random.default_rng(count)
    pictures = rng.integers(0, 256, (count, 784)).astype("float32") / 255
    return tf.data.Dataset.from_tensor_slices((pictures, rng.integers(0, 10, count).astype("float32"))).batch(64)


with strategy.scope():
    model = network()
model.fit(digits(1280), epochs=2, validation_data=digits(320))
print(model.evaluate(digits(320)))
