"""Which points lie in the circle? podlift submit train.py --workers 2 --max-steps 20"""

import os

import keras
import tensorflow as tf
from points import batches

import sdk

ctx = sdk.context()
with ctx.strategy.scope():
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(32, "relu"), keras.layers.Dense(1)])
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss, metrics=[keras.metrics.BinaryAccuracy(threshold=0.0)])

train, check = (tf.data.Dataset.from_tensor_slices(batches(200, seed)).batch(32) for seed in (1, 2))
model.fit(train, validation_data=check, epochs=10, verbose=2 if ctx.is_chief else 0)
model.save(os.path.join(ctx.dirs.model, "circle.keras"))
