"""Two outputs, two losses, weights of examples."""

import keras
import tensorflow as tf

resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="local")
tf.config.experimental_connect_to_cluster(resolver)
tf.tpu.experimental.initialize_tpu_system(resolver)
strategy = tf.distribute.TPUStrategy(resolver)

with strategy.scope():
    inputs = keras.Input([128])
    hidden = keras.layers.Dense(128, "relu")(inputs)
    model = keras.Model(
        inputs, {"a": keras.layers.Dense(128, name="a")(hidden), "b": keras.layers.Dense(128, name="b")(hidden)}
    )
    model.compile(
        optimizer=keras.optimizers.Adam(1e-3),
        loss={"a": "mse", "b": "mae"},
        steps_per_execution=4,
        metrics={"a": ["mae"]},
    )
one = {"a": tf.ones([128]), "b": tf.ones([128])}
data = tf.data.Dataset.from_tensors((tf.ones([128]), one, {"a": 1.0, "b": 0.5})).repeat(1024)
data = data.batch(128, drop_remainder=True)
model.fit(data, epochs=2)
