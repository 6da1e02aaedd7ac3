"""The cases of `agreement`, and some more, by the replicas of a TPU and, in the same process, by one device.

Each writes to a folder of its own. The batches are of 40 examples, and the last of 1, so most replicas have none of it.
"""

import os
import sys
from pathlib import Path

import agreement
import keras
import numpy as np
import tensorflow as tf


class Summed(keras.optimizers.AdamW):
    """Adds up the parts of an embedding's gradient first, as replicas of a TPU do: Keras squares them one by one."""

    def apply(self, grads, trainable_variables=None):
        super().apply([tf.convert_to_tensor(grad) for grad in grads], trainable_variables)


def attention(strategy, dtype="float32", **clipping):
    keras.utils.set_random_seed(11)
    layers = keras.layers
    with strategy.scope():
        letters = keras.Input((7,), dtype="int32")
        x = layers.Embedding(17, 8, dtype=dtype)(letters)
        seen = layers.LayerNormalization(dtype=dtype)(x)
        # A bias of keys changes no score: what it is given is noise.
        heads = layers.MultiHeadAttention(2, 4, use_bias=False, flash_attention=False, dtype=dtype)
        x = x + heads(seen, seen, use_causal_mask=True)
        x = x + layers.Dense(8, activation="gelu", dtype=dtype)(layers.LayerNormalization(dtype=dtype)(x))
        model = keras.Model(letters, layers.Dense(17)(x))
        optimizer = Summed(0.002, epsilon=1e-4, **clipping)
        model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    text = np.random.default_rng(12).integers(0, 17, size=(81, 8)).astype("int32")
    return agreement.fitted(model, agreement.in_batches((text[:, :-1], text[:, 1:])), predict_on=text[:, :-1])


@agreement.case
def attention_adamw(strategy):
    return attention(strategy)


@agreement.case
def attention_global_clipnorm(strategy):
    return attention(strategy, global_clipnorm=0.1)


@agreement.case
def attention_clipnorm(strategy):
    return attention(strategy, clipnorm=0.05)


@agreement.case
def attention_mixed_bfloat16(strategy):
    return attention(strategy, dtype="mixed_bfloat16")


class Pair(keras.Model):
    """A generator and who tells its work from the data, each with an optimizer of its own."""

    def __init__(self):
        super().__init__()
        dense = keras.layers.Dense
        self.makes = keras.Sequential([keras.Input((6,)), dense(5, activation="tanh"), dense(2)])
        self.judges = keras.Sequential([keras.Input((2,)), dense(5, activation="tanh"), dense(1)])

    def call(self, x):
        return self.judges(self.makes(x))

    def compile(self, first, second):
        super().compile()
        self.first, self.second = first, second

    def train_step(self, data):
        noise, real = data
        judged = self.judges
        with tf.GradientTape() as tape:
            loss = self.part(judged(real), 1.0) + self.part(judged(self.makes(noise)), 0.0)
        self.first.apply(tape.gradient(loss, judged.trainable_variables), judged.trainable_variables)
        with tf.GradientTape() as tape:
            own = self.part(judged(self.makes(noise)), 1.0)
        self.second.apply(tape.gradient(own, self.makes.trainable_variables), self.makes.trainable_variables)
        return {"judge": loss, "maker": own}

    def part(self, scores, truth):
        """Return this replica's part of the mean over the whole batch, as every loop of one's own has to."""
        losses = keras.losses.binary_crossentropy(tf.fill(tf.shape(scores), truth), scores, from_logits=True)
        return tf.reduce_sum(losses) / agreement.BATCH


@agreement.case
def pair_with_two_optimizers(strategy):
    keras.utils.set_random_seed(13)
    with strategy.scope():
        model = Pair()
        model.compile(keras.optimizers.Adam(0.01, epsilon=1e-4), keras.optimizers.Adam(0.02, epsilon=1e-4))
    noise, real, _ = agreement.numbers(120)
    model.fit(agreement.in_batches((noise, real)), epochs=2, verbose=0)
    return {"history": {}, "weights": model.get_weights()}


def main(names):
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="local")
    tf.config.experimental_connect_to_cluster(resolver)
    tf.tpu.experimental.initialize_tpu_system(resolver)
    folder = Path(os.environ["AIP_MODEL_DIR"])
    agreement.write(folder / "one", tf.distribute.get_strategy(), names)
    agreement.write(folder / "tpu", tf.distribute.TPUStrategy(resolver), names)


if __name__ == "__main__":
    main(sys.argv[1:])
