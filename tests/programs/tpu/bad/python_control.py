"""A layer whose Python asks a tensor whether it is true; a shape that is known and a training flag may be asked."""

import keras
import tensorflow as tf

resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="local")
tf.config.experimental_connect_to_cluster(resolver)
tf.tpu.experimental.initialize_tpu_system(resolver)
strategy = tf.distribute.TPUStrategy(resolver)


class Gate(keras.layers.Layer):
    def call(self, x, training=False):
        if x.shape[-1] == 128 and training:
            x = x + 1.0
        if tf.reduce_sum(x) > 0:  # refused: python-control
            x = x * 2.0
        return x


with strategy.scope():
    model = keras.Sequential([keras.Input([128]), Gate(), keras.layers.Dense(128)])
    model.compile(optimizer=keras.optimizers.SGD(0.01), loss="mse", steps_per_execution=2)
data = tf.data.Dataset.from_tensor_slices((tf.ones([2048, 128]), tf.ones([2048, 128])))
model.fit(data.batch(512, drop_remainder=True))
