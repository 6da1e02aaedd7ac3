"""A layer of its own with tf operations and a loop."""

import keras
import tensorflow as tf

resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="local")
tf.config.experimental_connect_to_cluster(resolver)
tf.tpu.experimental.initialize_tpu_system(resolver)
strategy = tf.distribute.TPUStrategy(resolver)


class Mixing(keras.layers.Layer):
    def build(self, shape):
        self.kernel = self.add_weight(shape=[128, 128])

    def call(self, x):
        for _ in range(3):
            x = tf.nn.relu(tf.matmul(x, self.kernel))
        kept = tf.where(x > 0, x, tf.zeros_like(x))
        _, order = tf.math.top_k(kept, 8)
        return kept + tf.reduce_mean(tf.cast(order, tf.float32))


with strategy.scope():
    model = keras.Sequential([keras.Input([128]), Mixing(), keras.layers.Dense(128)])
    model.compile(optimizer=keras.optimizers.Adam(1e-3), loss="mse", steps_per_execution=4)
data = tf.data.Dataset.from_tensors((tf.ones([128]), tf.ones([128]))).repeat(1024)
data = data.batch(128, drop_remainder=True)
model.fit(data, epochs=2)
