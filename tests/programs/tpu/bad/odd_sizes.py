"""Layers of 32 channels fill a quarter of what the matrix unit computes."""

import keras
import tensorflow as tf

resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="local")
tf.config.experimental_connect_to_cluster(resolver)
tf.tpu.experimental.initialize_tpu_system(resolver)
strategy = tf.distribute.TPUStrategy(resolver)

with strategy.scope():
    layers = [keras.layers.Conv2D(32, 3, padding="same", activation="relu") for _ in range(4)]
    model = keras.Sequential([keras.Input([64, 64, 4]), *layers, keras.layers.GlobalAveragePooling2D()])
    model.compile(optimizer=keras.optimizers.SGD(0.01), loss="mse", steps_per_execution=2)
data = tf.data.Dataset.from_tensors((tf.ones([64, 64, 4]), tf.ones([32]))).repeat(2048)
model.fit(data.batch(512, drop_remainder=True))  # warning: padding
