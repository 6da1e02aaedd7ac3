"""Rows that Python makes one by one."""

import keras
import tensorflow as tf

resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="local")
tf.config.experimental_connect_to_cluster(resolver)
tf.tpu.experimental.initialize_tpu_system(resolver)
strategy = tf.distribute.TPUStrategy(resolver)


def rows():
    for _ in range(2048):
        yield [1.0] * 128, [1.0] * 128


signature = (tf.TensorSpec([128]), tf.TensorSpec([128]))
data = tf.data.Dataset.from_generator(rows, output_signature=signature)  # warning: python-input
data = data.batch(512, drop_remainder=True)
with strategy.scope():
    model = keras.Sequential([keras.Input([128]), keras.layers.Dense(128)])
    model.compile(optimizer=keras.optimizers.SGD(0.01), loss="mse", steps_per_execution=2)
model.fit(data)
