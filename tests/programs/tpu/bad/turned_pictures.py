"""A layer that turns pictures inside the model, for which the compiler has no operation; flipping them is fine."""

import keras
import tensorflow as tf

resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="local")
tf.config.experimental_connect_to_cluster(resolver)
tf.tpu.experimental.initialize_tpu_system(resolver)
strategy = tf.distribute.TPUStrategy(resolver)

with strategy.scope():
    layers = [keras.layers.RandomFlip(), keras.layers.RandomRotation(0.1), keras.layers.Conv2D(128, 3)]
    pooled = keras.layers.GlobalAveragePooling2D()
    model = keras.Sequential([keras.Input([16, 16, 3]), *layers, pooled])
    model.compile(optimizer=keras.optimizers.SGD(0.01), loss="mse", steps_per_execution=2)
data = tf.data.Dataset.from_tensors((tf.ones([16, 16, 3]), tf.ones([128]))).repeat(1024)
model.fit(data.batch(128, drop_remainder=True))  # refused: unsupported
