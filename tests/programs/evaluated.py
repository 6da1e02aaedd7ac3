"""Two fits, or a loop, with checkpoints that an evaluator evaluates. Words: fit or loop, and the seconds of each step."""

import json
import sys
import time

import numpy as np
import tensorflow as tf

import sdk

STYLE, PAUSE_S = sys.argv[1], float(sys.argv[2])
ctx = sdk.context()
strategy = ctx.strategy
keras = tf.keras
keras.utils.set_random_seed(3)
x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
y = x.sum(1, keepdims=True)


class Slow(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        time.sleep(PAUSE_S)


def build():
    layers = [keras.Input((4,)), keras.layers.Dense(3), keras.layers.BatchNormalization(), keras.layers.Dense(1)]
    return keras.Sequential(layers)


def fit():
    for part in range(2):
        with strategy.scope():
            model = build()
            model.compile("adam", "mse")
        options = {"batch_size": 16, "epochs": 2, "validation_data": (x[:10], y[:10]), "callbacks": [Slow()]}
        history = model.fit(x, y, verbose=0, **options).history
        print(json.dumps({"part": part, **{name: list(map(float, v)) for name, v in history.items()}}), flush=True)
        model.save(f"{ctx.dirs.model}/{part}.keras")
    print("the end of the program", flush=True)


def loop():
    with strategy.scope():
        model = build()
        optimizer = keras.optimizers.SGD(0.05)
        optimizer.build(model.trainable_variables)
    if ctx.is_evaluator:
        for step in ctx.each_checkpoint(model=model):
            ctx.report({"val_sum": sum(float(np.sum(value)) for value in model.get_weights())}, step=step)
        return

    @tf.function
    def train(batch):
        def one(features, labels):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(features) - labels) ** 2)
            optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)

        strategy.run(one, args=batch)

    data = strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensor_slices((x, y)).batch(16))
    ckpt = ctx.checkpoint(model=model, optimizer=optimizer, data=data)
    for _ in range(ckpt.epoch, 2):
        for batch in ckpt.data:
            train(batch)
            if ckpt.step() % 2 == 0:
                print(json.dumps({"sum": sum(float(np.sum(v)) for v in model.get_weights())}), flush=True)
            time.sleep(PAUSE_S)


{"fit": fit, "loop": loop}[STYLE]()
