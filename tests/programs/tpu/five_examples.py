"""The Korean overview's one weight: the learning rate follows from the global batch, which is five for each replica."""

import keras
import tensorflow as tf

resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="local")
tf.config.experimental_connect_to_cluster(resolver)
tf.tpu.experimental.initialize_tpu_system(resolver)
strategy = tf.distribute.experimental.TPUStrategy(resolver)

FOR_EACH = 5
together = FOR_EACH * strategy.num_replicas_in_sync
rate = {5: 0.1, 10: 0.15, 40: 0.2}[together]
data = tf.data.Dataset.from_tensors(([1.0], [1.0])).repeat(200).batch(together)
with strategy.scope():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(loss="mse", optimizer=keras.optimizers.SGD(rate))
model.fit(data, epochs=2)  # warning: batch
