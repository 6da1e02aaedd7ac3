"""The training program of the start benchmark: 60 steps of a small CNN in a custom loop on generated data.

Generated, because only the shape of the work matters here. It knows nothing of podlift. With
STEPS_FOLDER every process leaves the time of each step there, and goes on until it is killed.
"""

import os
import time

import keras
import numpy as np
import tensorflow as tf

STEPS, BATCH = 60, 64


def main() -> None:
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    keras.utils.set_random_seed(1)
    rng = np.random.default_rng(0)
    images = rng.random((640, 16, 16, 1), dtype="float32")
    labels = rng.integers(0, 10, 640)
    data = tf.data.Dataset.from_tensor_slices((images, labels)).repeat().batch(BATCH)
    with strategy.scope():
        layers = keras.layers
        model = keras.Sequential([keras.Input((16, 16, 1)), layers.Conv2D(16, 3, activation="relu"), layers.Flatten()])
        model.add(layers.Dense(10))
        optimizer = keras.optimizers.SGD(0.01)
        optimizer.build(model.trainable_variables)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=None)

    def step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = tf.nn.compute_average_loss(loss_of(y, model(x, training=True)), global_batch_size=BATCH)
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return loss

    @tf.function
    def distributed(batch):
        return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(step, args=(batch,)), axis=None)

    iterator = iter(strategy.experimental_distribute_dataset(data))
    steps = os.environ.get("STEPS_FOLDER")
    # Whoever starts when others have trained before takes the place of somebody killed: a few steps show that it goes on.
    again = steps is not None and any(os.path.getsize(os.path.join(steps, name)) > 100 for name in os.listdir(steps))
    for number in range(STEPS if steps is None or again else 100 * STEPS):
        loss = distributed(next(iterator))
        if steps is not None:
            float(loss)
            with open(os.path.join(steps, str(os.getpid())), "a") as file:
                file.write(f"{time.time()}\n")
        if number == 0 and os.environ.get("FIRST_STEP_FILE"):
            float(loss)
            with open(os.environ["FIRST_STEP_FILE"], "w") as file:
                file.write(str(time.time()))
    print("loss", float(loss))
    if os.environ.get("FIRST_STEP_FILE"):
        with open(os.environ["FIRST_STEP_FILE"], "a") as file:
            file.write(f" {time.time()}")


if __name__ == "__main__":
    main()
