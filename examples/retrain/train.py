"""Trains a network and saves it where a gate finds it: podlift submit train.py --workers 2 -- --epochs 10."""

import argparse

import keras
import numpy as np

import sdk

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=10)
options = parser.parse_args()

ctx = sdk.context()
with ctx.strategy.scope():
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(32, activation="relu"), keras.layers.Dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer="adam", loss=loss, metrics=["accuracy"])
train = np.load(ctx.inputs["train"])
model.fit(train["images"], train["labels"], batch_size=32, epochs=options.epochs, verbose=0)
model.save(f"{ctx.dirs.model}/model.keras")
