"""A step whose activations do not fit; the model is small."""

import keras
import tensorflow as tf

resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="local")
tf.config.experimental_connect_to_cluster(resolver)
tf.tpu.experimental.initialize_tpu_system(resolver)
strategy = tf.distribute.TPUStrategy(resolver)

with strategy.scope():
    layers = [keras.layers.Dense(size, activation="relu") for _ in range(3) for size in (16384, 128)]
    model = keras.Sequential([keras.Input([], dtype="int32"), keras.layers.Embedding(128, 128), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.Adam(0.01), loss=loss, steps_per_execution=2)
one_batch = tf.ones([8 * 65536], tf.int32)
model.fit(tf.data.Dataset.from_tensors((one_batch, one_batch)).repeat(8))  # refused: memory
