"""Stop a training, and resume it at the step where it was. Run: python examples/03_resume.py"""

import keras
import numpy as np

import sdk
from sdk.testing.tasks import wait_for_step


def train(epochs):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.layers.Dense(32, "relu"), keras.layers.Dense(1, "sigmoid")])
    model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
    points = np.random.default_rng(1).uniform(-1, 1, size=(6400, 2))
    model.fit(points, np.square(points).sum(axis=1) < 0.6, batch_size=8, epochs=epochs, verbose=0)


if __name__ == "__main__":
    run = sdk.submit(train, args={"epochs": 4})
    wait_for_step(run, 400)
    run.cancel()  # the task saves its state, and ends
    print(run.wait().state, "at step", run.status().saved_step)
    print(run.resume())
    print(run.result().metrics)
