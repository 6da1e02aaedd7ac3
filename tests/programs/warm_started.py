"""Trains on digits, and prints the loss of its first step and of the weights that it leaves.

A batch has all examples: the loss of the first step is the loss of the weights to begin with.
"""

import argparse
import os
import signal

import tensorflow as tf
from sklearn.datasets import load_digits

import sdk

parser = argparse.ArgumentParser()
parser.add_argument("--loop", action="store_true")
parser.add_argument("--ignored", action="store_true", help="the loop does not ask for the weights")
parser.add_argument("--backup", action="store_true", help="the program saves and restores by itself")
parser.add_argument("--lazy", action="store_true", help="the weights are made at the first call")
parser.add_argument("--earlier", type=int, default=0, help="models made before: Keras numbers layers as they are made")
parser.add_argument("--eager", action="store_true", help="print the loss before the first step instead of the step's")
parser.add_argument("--width", type=int, default=32)
parser.add_argument("--disturbed", action="store_true", help="killed before step 1, then failing after step 2")
options = parser.parse_args()
attempt = int(os.environ["PODLIFT_ATTEMPT"])
keras = tf.keras
ctx = sdk.context()
strategy = ctx.strategy
digits = load_digits()
x, y = (digits.data[:512] / 16).astype("float32"), digits.target[:512].astype("int64")
data = tf.data.Dataset.from_tensor_slices((x, y)).batch(512)


class Lazy(keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden, self.out = keras.layers.Dense(options.width, activation="relu"), keras.layers.Dense(10)

    def call(self, inputs, training=False):
        return self.out(self.hidden(inputs))


class Told(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.steps = 0
        if options.disturbed and attempt == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if options.eager:
            each = keras.losses.sparse_categorical_crossentropy(y, self.model(x), from_logits=True)
            print("first", float(tf.reduce_mean(each)), flush=True)

    def on_train_batch_end(self, batch, logs=None):
        self.steps += 1
        if self.steps == 1 and not options.eager:
            print("first", float(logs["loss"]), flush=True)
        if options.disturbed and attempt == 2 and self.steps == 2:
            raise RuntimeError("on purpose")


def make():
    if options.lazy:
        return Lazy()
    layers = [keras.layers.Dense(options.width, activation="relu"), keras.layers.Dense(10)]
    return keras.Sequential([keras.Input((64,)), *layers])


with strategy.scope():
    for _ in range(options.earlier):
        make()
    model, optimizer = make(), keras.optimizers.SGD(0.1)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    if not options.loop:
        model.compile(optimizer, loss)
if options.loop:
    if not options.ignored:
        print("loaded", ctx.warm_start(model))
    checkpoint = ctx.checkpoint(model=model)
    print("restored", checkpoint.restore(), "loaded", not options.ignored and ctx.warm_start(model))
    while checkpoint.steps < 3:
        if checkpoint.steps == 0:
            print("first", float(loss(y, model(x))))
        model.weights[-1].assign_add(tf.ones(10))
        if checkpoint.step() == 2 and options.disturbed and attempt == 1:
            checkpoint.save()
            raise RuntimeError("on purpose")
    print("shifted", float(model.weights[-1][0]))
else:
    backups = [keras.callbacks.BackupAndRestore(f"{ctx.dirs.checkpoints}/backup")] if options.backup else []
    model.fit(data, epochs=3, verbose=0, callbacks=[*backups, Told()])
    print("steps", int(optimizer.iterations.numpy()))
    print("last", float(model.evaluate(data, verbose=0)))
model.save(f"{ctx.dirs.model}/model.keras")
