"""The last batch of an epoch is smaller than the others."""

import keras
import tensorflow as tf

resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="local")
tf.config.experimental_connect_to_cluster(resolver)
tf.tpu.experimental.initialize_tpu_system(resolver)
strategy = tf.distribute.TPUStrategy(resolver)

data = tf.data.Dataset.from_tensor_slices((tf.ones([1000, 128]), tf.ones([1000, 128])))
data = data.batch(512)
with strategy.scope():
    model = keras.Sequential([keras.Input([128]), keras.layers.Dense(128)])
    model.compile(optimizer=keras.optimizers.SGD(0.01), loss="mse", steps_per_execution=2)
model.fit(data, epochs=2)  # warning: uneven-batch
