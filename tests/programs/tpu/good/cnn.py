"""A convolutional network with batch normalization."""

import keras
import tensorflow as tf

resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="local")
tf.config.experimental_connect_to_cluster(resolver)
tf.tpu.experimental.initialize_tpu_system(resolver)
strategy = tf.distribute.TPUStrategy(resolver)

with strategy.scope():
    model = keras.Sequential(
        [
            keras.Input([16, 16, 128]),
            keras.layers.Conv2D(128, 3, padding="same", use_bias=False),
            keras.layers.BatchNormalization(),
            keras.layers.ReLU(),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(128),
        ]
    )
    model.compile(
        optimizer=keras.optimizers.Adam(1e-3),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        steps_per_execution=4,
    )
data = tf.data.Dataset.from_tensors((tf.ones([16, 16, 128]), tf.zeros([], tf.int32))).repeat(1024)
data = data.batch(128, drop_remainder=True)
model.fit(data, epochs=2)
