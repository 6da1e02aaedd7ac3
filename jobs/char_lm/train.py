"""A language model of characters: a small transformer on the text of Python's own standard library (no download).

podlift submit jobs/char_lm/train.py -- --steps 1000
podlift submit jobs/char_lm/train.py --accelerator v5e-8 -- --steps 200

Measured after 1000 steps on one CPU, two minutes on two cores: of text that it has not seen, it predicts 58 of 100 characters.
"""

import argparse
import os
import sysconfig
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import sdk

CHARACTERS = 128  # ASCII, which nearly all of the library is; everything else counts as character 0
VALIDATION = 0.05


def text(size: int) -> np.ndarray:
    """Return that many characters of the standard library's modules, in the order of their names, as numbers below 128."""
    read, found = 0, []
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        found.append(np.frombuffer(path.read_bytes(), np.uint8))
        read += len(found[-1])
        if read >= size:
            break
    letters = np.concatenate(found)[:size].astype("int32")
    return np.where(letters < CHARACTERS, letters, 0)


def pieces(letters: np.ndarray, length: int, batch: int, *, shuffled: bool) -> tf.data.Dataset:
    """Return batches of (characters, those that follow each), all of one shape: a TPU compiles every shape anew."""
    rows = (len(letters) - 1) // length
    x = letters[: rows * length].reshape(rows, length)
    y = letters[1 : rows * length + 1].reshape(rows, length)
    data = tf.data.Dataset.from_tensor_slices((x, y))
    # Validated in order: what is left over for the last batch is then the same each time.
    data = data.shuffle(rows, seed=1) if shuffled else data
    return data.batch(batch, drop_remainder=True).prefetch(tf.data.AUTOTUNE)


class Positions(keras.layers.Layer):
    """Adds what is learnt about each place to what is there."""

    def build(self, shape: tuple[int, ...]) -> None:
        self.table = self.add_weight(
            shape=shape[1:], initializer=keras.initializers.RandomNormal(stddev=0.02), name="table"
        )

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return x + keras.ops.cast(self.table, x.dtype)


def block(x: keras.KerasTensor, width: int, heads: int) -> keras.KerasTensor:
    """One block: attention to what came before, then two dense layers, each added to what came in."""
    seen = keras.layers.LayerNormalization()(x)
    attention = keras.layers.MultiHeadAttention(heads, width // heads, flash_attention=False)
    x = x + attention(seen, seen, use_causal_mask=True)
    seen = keras.layers.Dense(4 * width, activation="gelu")(keras.layers.LayerNormalization()(x))
    return x + keras.layers.Dense(width)(seen)


def build(options: argparse.Namespace) -> keras.Model:
    letters = keras.Input((options.length,), dtype="int32")
    x = Positions()(keras.layers.Embedding(CHARACTERS, options.width)(letters))
    for _ in range(options.blocks):
        x = block(x, options.width, options.heads)
    scores = keras.layers.Dense(CHARACTERS, dtype="float32")(keras.layers.LayerNormalization()(x))
    model = keras.Model(letters, scores)
    model.compile(
        optimizer=keras.optimizers.AdamW(options.rate),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        steps_per_execution=options.each,
    )
    return model


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200, help="training steps in all")
    parser.add_argument("--per-replica", type=int, default=16, help="pieces of text on each replica in a step")
    parser.add_argument("--characters", type=int, default=2_000_000, help="how much text")
    parser.add_argument("--length", type=int, default=128, help="characters of a piece")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--blocks", type=int, default=2)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--each", type=int, default=10, help="steps_per_execution")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    ctx = sdk.context()
    strategy = ctx.strategy  # first of all: MultiWorkerMirroredStrategy must exist before any other operation
    keras.utils.set_random_seed(7)
    letters = text(options.characters)
    split = int(len(letters) * (1 - VALIDATION))
    batch = ctx.global_batch_size(options.per_replica)
    train = pieces(letters[:split], options.length, batch, shuffled=True)
    validation = pieces(letters[split:], options.length, batch, shuffled=False)
    with strategy.scope():
        model = build(options)
    # Data without an end, and an epoch that is a number of steps: no batch has another shape.
    model.fit(
        train.repeat(),
        epochs=2,
        steps_per_epoch=max(1, options.steps // 2),
        validation_data=validation,
        verbose=2 if ctx.is_chief else 0,
    )
    if ctx.is_chief:
        os.makedirs(ctx.dirs.model, exist_ok=True)
    model.save(os.path.join(ctx.dirs.model, "char_lm.keras"))


if __name__ == "__main__":
    main()
