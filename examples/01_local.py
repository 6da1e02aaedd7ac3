"""Train a small model on two local worker processes. Run: python examples/01_local.py"""

import keras
import numpy as np

import sdk


def train(epochs):
    keras.utils.set_random_seed(1)
    with sdk.context().strategy.scope():
        model = keras.Sequential([keras.layers.Dense(32, "relu"), keras.layers.Dense(1, "sigmoid")])
        model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
    points = np.random.default_rng(1).uniform(-1, 1, size=(6400, 2))
    model.fit(points, np.square(points).sum(axis=1) < 0.6, batch_size=64, epochs=epochs)


if __name__ == "__main__":
    run = sdk.submit(train, args={"epochs": 3}, workers=2)  # returns at once; the run outlives this process
    run.watch()  # shows its progress until it ends
    print(run.result().metrics)  # {'accuracy': 0.69, 'loss': 0.59}; raises with the traceback of the task that failed
