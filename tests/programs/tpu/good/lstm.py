"""A recurrent network."""

import keras
import tensorflow as tf

resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="local")
tf.config.experimental_connect_to_cluster(resolver)
tf.tpu.experimental.initialize_tpu_system(resolver)
strategy = tf.distribute.TPUStrategy(resolver)

with strategy.scope():
    model = keras.Sequential([keras.Input([16, 128]), keras.layers.LSTM(128), keras.layers.Dense(128)])
    model.compile(optimizer=keras.optimizers.Adam(1e-3), loss="mse", steps_per_execution=4)
data = tf.data.Dataset.from_tensors((tf.ones([16, 128]), tf.ones([128]))).repeat(1024)
data = data.batch(128, drop_remainder=True)
model.fit(data, epochs=2)
