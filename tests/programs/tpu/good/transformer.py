"""Attention with a causal mask and a padding mask."""

import keras
import tensorflow as tf

resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="local")
tf.config.experimental_connect_to_cluster(resolver)
tf.tpu.experimental.initialize_tpu_system(resolver)
strategy = tf.distribute.TPUStrategy(resolver)

with strategy.scope():
    tokens = keras.Input([128], dtype="int32")
    x = keras.layers.Embedding(256, 128, mask_zero=True)(tokens)
    attended = keras.layers.MultiHeadAttention(1, 128)(x, x, use_causal_mask=True)
    x = keras.layers.LayerNormalization()(x + attended)
    x = keras.layers.LayerNormalization()(x + keras.layers.Dense(128)(keras.layers.Dense(512, "gelu")(x)))
    model = keras.Model(tokens, keras.layers.Dense(256)(x))
    model.compile(
        optimizer=keras.optimizers.Adam(1e-3),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        steps_per_execution=4,
    )
data = tf.data.Dataset.from_tensors((tf.ones([128], tf.int32), tf.ones([128], tf.int32))).repeat(512)
data = data.batch(64, drop_remainder=True)
model.fit(data, epochs=2)
