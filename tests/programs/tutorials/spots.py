"""What the programs of this folder train on and with: 512 noisy vectors of four kinds, and a two-layer classifier."""

import numpy as np
import tensorflow as tf

CLASSES, FEATURES = 4, 16


def arrays(count: int = 512) -> tuple[np.ndarray, np.ndarray]:
    """Return (vectors, kinds) of shapes (count, 16) and (count,), the same in every process."""
    kinds = np.arange(count) % CLASSES
    vectors = np.random.default_rng(3).normal(scale=0.3, size=(count, FEATURES))
    vectors[np.arange(count), kinds * 4] += 2.0
    return vectors.astype("float32"), kinds.astype("int64")


def dataset(batch: int, *, repeat: bool = False) -> tf.data.Dataset:
    """Return the arrays in batches of `batch`, which is the global batch."""
    found = tf.data.Dataset.from_tensor_slices(arrays())
    return (found.repeat() if repeat else found).batch(batch)


def classifier(learning_rate: float = 0.1) -> tf.keras.Model:
    """Return a compiled model."""
    layers = tf.keras.layers
    model = tf.keras.Sequential(
        [tf.keras.Input((FEATURES,)), layers.Dense(16, activation="relu"), layers.Dense(CLASSES)]
    )
    model.compile(
        optimizer=tf.keras.optimizers.SGD(learning_rate),
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model
