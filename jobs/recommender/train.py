"""Recommends films: embeddings of users and films on parameter servers, trained by workers that do not wait for each other.

podlift submit jobs/recommender/train.py --workers 3 --ps 1 -- --steps 2000

The ratings are generated: each user and each film has 4 hidden tastes, and a rating is their product with noise. Always
guessing the average has an error of 1.12 (root mean square); knowing all tastes leaves that of the noise, 0.5.

Measured after 2000 steps, half a minute on two cores: 0.55 on ratings that were held back. Workers do not wait for each
other, so the numbers differ a little from run to run.
"""

import argparse
import os

import keras
import numpy as np
import tensorflow as tf

import sdk

USERS, FILMS, TASTES, RATINGS, NOISE = 600, 400, 4, 60_000, 0.5
BATCH = 256
ROUND = 50  # steps that are handed out at a time


def ratings(seed: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Return (user, film) of shape (n, 2), and what that user gives that film, 0 being the average."""
    rng = np.random.default_rng(seed)
    users, films = (rng.normal(size=(count, TASTES)) / TASTES**0.25 for count in (USERS, FILMS))
    pairs = np.stack([rng.integers(USERS, size=RATINGS), rng.integers(FILMS, size=RATINGS)], axis=1)
    liked = np.sum(users[pairs[:, 0]] * films[pairs[:, 1]], axis=1)
    return pairs, (liked + rng.normal(scale=NOISE, size=RATINGS)).astype("float32")


class Recommender(keras.Model):
    """A rating is the product of the embedding of the user with that of the film."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        small = keras.initializers.RandomNormal(stddev=0.3, seed=1)
        self.users = keras.layers.Embedding(USERS, width, embeddings_initializer=small)
        self.films = keras.layers.Embedding(FILMS, width, embeddings_initializer=small)

    def call(self, pairs: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(self.users(pairs[:, 0]) * self.films(pairs[:, 1]), axis=1)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=2000, help="training steps of all workers together")
    options = parser.parse_args()
    ctx = sdk.context()
    strategy = ctx.strategy  # workers and parameter servers serve here, and do not get any further
    pairs, given = ratings()
    held_back = len(pairs) // 10
    with strategy.scope():  # the variables are made on the parameter servers
        keras.utils.set_random_seed(7)
        model = Recommender()
        model(pairs[:1])  # makes the embeddings
        optimizer = keras.optimizers.Adam(5e-3)
        optimizer.build(model.trainable_variables)

    def data() -> tf.data.Dataset:
        """What each worker reads: all ratings, in an order of its own."""
        rows = tf.data.Dataset.from_tensor_slices((pairs[held_back:], given[held_back:]))
        return rows.shuffle(20_000).repeat().batch(BATCH).prefetch(tf.data.AUTOTUNE)

    @tf.function
    def step(batches) -> tf.Tensor:
        def on_worker(pairs: tf.Tensor, given: tf.Tensor) -> tf.Tensor:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(model(pairs) - given))
            optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
            return loss

        return strategy.run(on_worker, args=next(batches))

    coordinator, batches = ctx.coordinator, ctx.per_worker_data(data)
    ckpt = ctx.checkpoint(model=model, optimizer=optimizer)
    ckpt.restore()
    while ckpt.steps < options.steps and not ctx.should_stop():
        count = min(ROUND, options.steps - ckpt.steps)
        losses = [coordinator.schedule(step, args=(batches,)) for _ in range(count)]
        coordinator.join()  # a worker that is lost meanwhile does not end the training: others take its steps
        ckpt.step(count)
        guessed = model(pairs[:held_back])
        rmse = float(np.sqrt(np.mean(np.square(guessed - given[:held_back]))))
        ctx.report({"loss": float(np.mean(coordinator.fetch(losses))), "val_rmse": rmse}, step=ckpt.steps)
    os.makedirs(ctx.dirs.model, exist_ok=True)
    model.save_weights(os.path.join(ctx.dirs.model, "recommender.weights.h5"))


if __name__ == "__main__":
    main()
