"""The training program of the scaling benchmark: the same net trained alone, by `fit`, or by a custom loop, among several.

It knows podlift only in the way "helpers". It trains whenever the benchmark says so, through a socket, and answers with what
it measured: when `fit` or the loop was called and when it returned, the CPU seconds between both, and when each step ended.
"""

import importlib.util
import json
import os
import resource
import socket
import sys
import time
from types import SimpleNamespace

NET, WAY, CORE, STEPS, PORT, CHAR_LM = sys.argv[1:7]
STEPS = int(STEPS)
if CORE != "any":
    os.sched_setaffinity(0, {int(CORE)})
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
WORKERS = 1 if WAY == "alone" else 2
SHARE = {"bench": 64, "char_lm": 10}[NET]  # examples of one worker in a step

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402


def bench():
    """A convolutional net of 0.6 million parameters with eight BatchNormalizations, and data with an end."""
    rng = np.random.default_rng(0)
    count = SHARE * WORKERS * STEPS
    arrays = rng.random((count, 24, 24, 3), dtype="float32"), rng.integers(0, 10, count)
    data = tf.data.Dataset.from_tensor_slices(arrays).shuffle(1000, seed=1).batch(SHARE * WORKERS)

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

    return data.prefetch(tf.data.AUTOTUNE), make, {}


def char_lm():
    """The transformer of jobs/char_lm with its data, one step in an execution."""
    found = importlib.util.spec_from_file_location("char_lm", CHAR_LM)
    job = importlib.util.module_from_spec(found)
    found.loader.exec_module(job)
    data = job.pieces(job.text(500_000), 128, SHARE * WORKERS, shuffled=True).repeat()
    options = SimpleNamespace(length=128, width=128, blocks=2, heads=4, rate=2e-3, each=1)
    return data, lambda: job.build(options), {"steps_per_epoch": STEPS}


class Steps(keras.callbacks.Callback):
    """Notes when each step ended, without a look at its logs, and lets Keras call the callbacks in the background as usual."""

    async_safe = True

    def __init__(self):
        super().__init__()
        self.ended = []

    def on_train_batch_end(self, batch, logs=None):
        self.ended.append(time.perf_counter())


def by_fit(model, data, options):
    return lambda steps: model.fit(data, callbacks=[steps], **options)


def by_loop(model, data, strategy):
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
    optimizer, whole = model.optimizer, SHARE * strategy.num_replicas_in_sync
    with strategy.scope():
        optimizer.build(model.trainable_variables)

    def step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            losses = loss_of(y, model(x, training=True))
            loss = tf.reduce_sum(tf.reduce_mean(tf.reshape(losses, (tf.shape(x)[0], -1)), 1)) / whole
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return loss

    @tf.function
    def distributed(batch):
        return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(step, args=(batch,)), axis=None)

    data = strategy.experimental_distribute_dataset(data.take(STEPS))
    checkpoint = None
    if WAY == "helpers":
        import sdk

        checkpoint = sdk.context().checkpoint(data=data, model=model, optimizer=optimizer)
        checkpoint.restore()

    def train(steps):
        for batch in data if checkpoint is None else checkpoint.data:
            loss = distributed(batch)
            if checkpoint is not None:
                checkpoint.step()
            steps.on_train_batch_end(0)
        float(loss)

    return train


def measured(train):
    steps = Steps()
    called, used = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
    train(steps)
    returned, then = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
    return {
        "took_s": returned - called,
        "inside_s": steps.ended[-1] - steps.ended[0],
        "cpu_s": then.ru_utime + then.ru_stime - used.ru_utime - used.ru_stime,
        "steps": len(steps.ended),
        "examples": SHARE,
    }


def main():
    strategy = tf.distribute.get_strategy() if WORKERS == 1 else tf.distribute.MultiWorkerMirroredStrategy()
    keras.utils.set_random_seed(1)
    data, make, options = {"bench": bench, "char_lm": char_lm}[NET]()
    with strategy.scope():
        model = make()
    train = by_fit(model, data, options) if WAY in ("alone", "fit") else by_loop(model, data, strategy)
    with socket.create_connection(("localhost", int(PORT))) as connection, connection.makefile("rw") as lines:
        print(WAY, file=lines, flush=True)
        for _ in lines:
            print(json.dumps({**measured(train), "parameters": model.count_params()}), file=lines, flush=True)


if __name__ == "__main__":
    main()
