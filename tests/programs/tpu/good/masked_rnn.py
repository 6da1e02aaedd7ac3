"""Words that were looked up in the input pipeline, a mask, and a recurrent network in both directions."""

import keras
import tensorflow as tf

resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="local")
tf.config.experimental_connect_to_cluster(resolver)
tf.tpu.experimental.initialize_tpu_system(resolver)
strategy = tf.distribute.TPUStrategy(resolver)

words = keras.layers.TextVectorization(max_tokens=128, output_sequence_length=16)
words.adapt(["a b c", "d e f"])
texts = tf.data.Dataset.from_tensor_slices((["a b c"] * 1024, [1.0] * 1024))
data = texts.map(lambda text, label: (words(text), label)).batch(128, drop_remainder=True)
with strategy.scope():
    model = keras.Sequential(
        [
            keras.Input([16], dtype="int64"),
            keras.layers.Embedding(128, 128, mask_zero=True),
            keras.layers.Bidirectional(keras.layers.GRU(128)),
            keras.layers.Dense(1),
        ]
    )
    model.compile(
        optimizer=keras.optimizers.AdamW(1e-3, clipnorm=1.0),
        loss=keras.losses.BinaryCrossentropy(from_logits=True),
        metrics=[keras.metrics.AUC(from_logits=True)],
        steps_per_execution=4,
    )
model.fit(data, epochs=2)
