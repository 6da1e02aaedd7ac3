"""Trains a small network on scikit-learn's digits: `swept.py --lr 0.01 --units 32`, or `--each JSON` for several in turn."""

import argparse
import json

import keras
import numpy as np
from sklearn.datasets import load_digits

EPOCHS, VALIDATION = 9, 297


def train(lr: float, units: int) -> None:
    keras.utils.set_random_seed(7)
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    x, y = digits.data[order] / 16.0, digits.target[order]
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(units, "relu"), keras.layers.Dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(lr), loss, metrics=["accuracy"])
    seen = (x[:VALIDATION], y[:VALIDATION])
    model.fit(x[VALIDATION:], y[VALIDATION:], epochs=EPOCHS, batch_size=64, validation_data=seen, verbose=0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--units", type=int, default=32)
    parser.add_argument("--each", type=json.loads)
    options = parser.parse_args()
    for each in options.each or [{"lr": options.lr, "units": options.units}]:
        train(**each)
