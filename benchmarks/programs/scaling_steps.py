"""The training program of the scaling benchmark: the same net trained alone, by `fit`, or by a custom loop, among several.

It knows podlift only in the way "helpers". What each process measured goes to `$MEASURED/<name>.json`: when `fit` or the loop
was called and when it returned, the CPU seconds between both, and when each step began and ended.
"""

import importlib.util
import json
import os
import resource
import sys
import time
from pathlib import Path
from types import SimpleNamespace

NAME, NET, WAY, STEPS, CORE = sys.argv[1:6]
STEPS = int(STEPS)
if CORE != "any":
    os.sched_setaffinity(0, {int(CORE)})
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
WORKERS = 2
NAME = os.environ.get("PODLIFT_TASK", NAME)
SHARES = {"bench": 64, "char_lm": 10}  # examples of one worker in a step
SHARE = SHARES[NET]

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402


def bench(share):
    """A convolutional net of 0.6 million parameters with eight BatchNormalizations."""
    rng = np.random.default_rng(0)
    count = 10 * share
    arrays = rng.random((count, 24, 24, 3), dtype="float32"), rng.integers(0, 10, count)

    def make():
        layers = keras.layers
        model = keras.Sequential([keras.Input((24, 24, 3))])
        for width, stride in ((32, 1), (32, 1), (64, 2), (64, 1), (128, 2), (128, 1), (128, 1), (128, 1)):
            model.add(layers.Conv2D(width, 3, strides=stride, padding="same", use_bias=False))
            model.add(layers.BatchNormalization())
            model.add(layers.Activation("relu"))
        model.add(layers.GlobalAveragePooling2D())
        model.add(layers.Dense(10))
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(1e-3), loss, metrics=["accuracy"])
        return model

    return arrays, make


def char_lm(share):
    """The transformer of jobs/char_lm, with its data."""
    found = importlib.util.spec_from_file_location("char_lm", os.environ["CHAR_LM"])
    job = importlib.util.module_from_spec(found)
    found.loader.exec_module(job)
    rows, length = 10 * share, 128
    letters = job.text(rows * length + 1)
    arrays = letters[:-1].reshape(rows, length), letters[1:].reshape(rows, length)
    options = SimpleNamespace(length=length, width=128, blocks=2, heads=4, rate=2e-3, each=1)
    return arrays, lambda: job.build(options)


class Steps(keras.callbacks.Callback):
    """Notes when each step began and ended, without a look at its logs."""

    def __init__(self):
        super().__init__()
        self.begun, self.ended = [], []

    def on_train_batch_begin(self, batch, logs=None):
        self.begun.append(time.perf_counter())

    def on_train_batch_end(self, batch, logs=None):
        self.ended.append(time.perf_counter())


def by_fit(model, data, strategy, steps):
    # Every option is the default. A callback that is called after a batch makes Keras call all of them in the same thread.
    model.fit(data, callbacks=[steps])


def by_loop(model, data, strategy, steps):
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
    optimizer, share = model.optimizer, SHARE * strategy.num_replicas_in_sync
    with strategy.scope():
        optimizer.build(model.trainable_variables)

    def step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            losses = loss_of(y, model(x, training=True))
            loss = tf.reduce_sum(tf.reduce_mean(tf.reshape(losses, (tf.shape(x)[0], -1)), 1)) / share
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return loss

    @tf.function
    def distributed(batch):
        return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(step, args=(batch,)), axis=None)

    alone = strategy.num_replicas_in_sync == 1
    data = data if alone else strategy.experimental_distribute_dataset(data)
    checkpoint = None
    if WAY == "helpers":
        import sdk

        checkpoint = sdk.context().checkpoint(data=data, model=model, optimizer=optimizer)
        checkpoint.restore()
    for batch in data if checkpoint is None else checkpoint.data:
        steps.on_train_batch_begin(0)
        loss = distributed(batch)
        if checkpoint is not None:
            checkpoint.step()
        steps.on_train_batch_end(0)
    float(loss)


def main():
    alone = WAY.startswith("alone")
    strategy = tf.distribute.get_strategy() if alone else tf.distribute.MultiWorkerMirroredStrategy()
    keras.utils.set_random_seed(1)
    arrays, make = {"bench": bench, "char_lm": char_lm}[NET](SHARE)
    batch = SHARE * (1 if alone else WORKERS)
    data = tf.data.Dataset.from_tensor_slices(arrays).shuffle(len(arrays[0]), seed=1).repeat()
    data = data.batch(batch).take(STEPS).prefetch(tf.data.AUTOTUNE)
    with strategy.scope():
        model = make()
    steps = Steps()
    called, used = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
    (by_fit if WAY in ("alone", "fit") else by_loop)(model, data, strategy, steps)
    returned, then = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
    found = {
        "called": [called],
        "returned": [returned],
        "cpu_s": [then.ru_utime + then.ru_stime - used.ru_utime - used.ru_stime],
        "begun": steps.begun,
        "ended": steps.ended,
        "examples": [SHARE],
        "parameters": [model.count_params()],
    }
    Path(os.environ["MEASURED"], f"{NAME}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
