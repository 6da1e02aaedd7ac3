"""Fits that are interrupted: `whole` trains and keeps the state at several points, `resumed` goes on from each of them.

Usage: fit_cases.py whole|resumed FOLDER CASE...   (the two must not be one process)
"""

import os
import pickle
import random
import sys
from pathlib import Path
from types import SimpleNamespace

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import numpy as np
import tensorflow as tf

DEVICES = int(os.environ.get("FIT_DEVICES", "1"))
if DEVICES > 1:
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * DEVICES)
if DEVICES == 1:
    strategy = tf.distribute.get_strategy()
elif DEVICES == 0:
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
else:
    strategy = tf.distribute.MirroredStrategy()
tf.config.experimental.enable_op_determinism()

import keras  # noqa: E402

from sdk.checkpoint.tf import keras_epochs, randomness  # noqa: E402
from sdk.checkpoint.tf.loading import load, replica_values  # noqa: E402
from sdk.checkpoint.tf.snapshot import components, take, variables_of  # noqa: E402
from sdk.runtime import patches  # noqa: E402
from sdk.runtime.patches import steps_per_execution  # noqa: E402

patches.install(steps_per_execution.patches())  # as in a task: without it, TensorFlow fails with several replicas
keras_epochs.install()
RANK = strategy.cluster_resolver.task_id if DEVICES == 0 else 0
RANK += 1 if DEVICES == 0 and strategy.cluster_resolver.task_type == "worker" else 0
TASKS = 2 if DEVICES == 0 else 1
N, BATCH = 44, 8  # the last batch of six has 4 examples
X = np.random.default_rng(0).normal(size=(N, 6)).astype("f4")
Y = np.random.default_rng(1).normal(size=(N, 2)).astype("f4")


def model(dropout=True, **compiled):
    layers = [keras.layers.Dense(8, activation="relu"), keras.layers.BatchNormalization()]
    layers += [keras.layers.Dropout(0.5)] if dropout else []
    net = keras.Sequential([*layers, keras.layers.Dense(2)])
    net.compile(**({"optimizer": "adam", "loss": "mse", "metrics": ["mae"]} | compiled))
    return net


class Noisy(keras.utils.PyDataset):
    """Draws noise, and puts its batches into another order behind each epoch."""

    def __init__(self):
        super().__init__()
        self.order = np.arange(5)

    def __len__(self):
        return 5

    def __getitem__(self, index):
        at = self.order[index] * 8
        # A copy: with several CPU devices, TensorFlow writes into the memory of an aligned view.
        return X[at : at + 8] + np.random.normal(size=(8, 6)).astype("f4"), Y[at : at + 8].copy()

    def on_epoch_end(self):
        np.random.shuffle(self.order)


def forever():
    generator = np.random.default_rng(5)
    while True:
        at = generator.integers(0, N, 8)
        yield X[at], Y[at]


def from_generator(batches=5):
    def generate():
        for _ in range(batches):
            at = np.random.randint(0, N, 8)
            yield X[at] + random.random(), Y[at]

    spec = (tf.TensorSpec([None, 6], tf.float32), tf.TensorSpec([None, 2], tf.float32))
    return tf.data.Dataset.from_generator(generate, output_signature=spec)


def dataset():
    return tf.data.Dataset.from_tensor_slices((X, Y))


class OwnStep(keras.Model):
    """Makes a variable in its train step, which cannot be built with symbols."""

    def __init__(self):
        super().__init__()
        self.net = keras.Sequential([keras.Input((6,)), keras.layers.Dense(2)])

    def call(self, x):
        return self.net(x)


class Decay(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        self.model.optimizer.learning_rate.assign(self.model.optimizer.learning_rate * 0.5)
        random.random()


def fit(net, *data, **options):
    return lambda callbacks, epochs: net.fit(*data, **options, epochs=epochs, verbose=0, callbacks=callbacks)


scaled = keras.optimizers.LossScaleOptimizer
CASES = {
    "arrays": lambda: fit(model(), X, Y, batch_size=BATCH),
    "arrays_in_batches": lambda: fit(model(), X, Y, batch_size=BATCH, shuffle="batch"),
    "arrays_and_validation": lambda: fit(model(), X, Y, batch_size=BATCH, validation_split=0.2),
    "arrays_with_steps": lambda: fit(model(), X, Y, batch_size=BATCH, steps_per_epoch=4),
    "arrays_two_steps_each": lambda: fit(model(steps_per_execution=2), X, Y, batch_size=4),
    "decay": lambda: fit(model(), X, Y, batch_size=BATCH),
    "shuffled": lambda: fit(model(), dataset().shuffle(20).batch(BATCH).prefetch(2)),
    "shuffled_with_steps": lambda: fit(model(), dataset().shuffle(20).repeat().batch(BATCH), steps_per_epoch=5),
    "steps_across_the_end": lambda: fit(model(), dataset().shuffle(20).batch(BATCH), steps_per_epoch=3),
    "unknown_size": lambda: fit(model(), dataset().shuffle(20).filter(lambda x, y: y[0] > -1.0).batch(BATCH)),
    "cached": lambda: fit(model(), dataset().cache().shuffle(20).batch(BATCH)),
    "numpy_function": lambda: fit(model(), dataset().shuffle(20).batch(BATCH).map(noise)),
    "from_generator": lambda: fit(model(), from_generator()),
    "pydataset": lambda: fit(model(), Noisy(), shuffle=True),
    "generator": lambda: fit(model(), forever(), steps_per_epoch=5),
    "stateful_random": lambda: fit(model(), dataset().batch(BATCH).map(lambda x, y: (x + tf.random.normal([6]), y))),
    "own_model": lambda: fit(compiled(OwnStep()), X, Y, batch_size=BATCH),
    "loss_scale": lambda: fit(model(optimizer=scaled(keras.optimizers.Adam(), dynamic_growth_steps=4)), X, Y),
}


def noise(x, y):
    return tf.ensure_shape(tf.numpy_function(lambda v: v + np.float32(np.random.rand()), [x], tf.float32), [None, 6]), y


def compiled(net):
    net.compile("adam", "mse", metrics=["mae"])
    return net


class Watch(keras.callbacks.Callback):
    """Stands in for the runtime after all callbacks."""

    def __init__(self, points, keep, state):
        super().__init__()
        self.points, self.keep, self.state, self.epoch = points, keep, state, 0

    def on_train_begin(self, logs=None):
        keras_epochs.build(self.model)
        if self.state is not None:
            arrays = {}
            for path, dtype, shape, data in self.state["arrays"]:
                arrays[path] = SimpleNamespace(dtype=dtype, shape=shape, data=memoryview(data))
            load(variables_of(model=self.model), arrays, per_replica=self.state["own"], rank=RANK, tasks=TASKS)
            randomness.restore(self.state["random"])
            keras_epochs.resume_into(self.model, *self.state["at"], self.state["data"])

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        self.save((self.epoch, batch + 1))

    def on_epoch_end(self, epoch, logs=None):
        self.save((epoch + 1, 0))

    def on_train_end(self, logs=None):
        keras_epochs.release(self.model)

    def save(self, at):
        if at in self.points:
            variables = variables_of(model=self.model)
            found = keras_epochs.position(self.model)
            self.keep[at] = {
                "at": at,
                "arrays": [(a.path, a.dtype, a.shape, bytes(a.data())) for a in take(variables)],
                "own": {RANK: replica_values(variables, tasks=TASKS)},
                "random": randomness.capture(),
                "data": found.state,
                "told": (found.kind, found.how, found.why),
            }


def train(case, points=(), state=None, epochs=3):
    keras.backend.clear_session()
    keras.utils.set_random_seed(3)
    randomness._ordinal[0] = 0
    keep = {}
    with strategy.scope():
        run = CASES[case]()
    watch = Watch(points, keep, state)
    history = run([*([Decay()] if case == "decay" else []), watch], epochs).history
    values = {p: [c.numpy() for c in components(v)] for p, v in variables_of(model=watch.model).items()}
    return {"values": values, "history": history, "next": (random.random(), float(np.random.rand()))}, keep


if __name__ == "__main__":
    mode, folder, *cases = sys.argv[1:]
    points = [(0, 2), (1, 4), (2, 0)]
    for case in cases:
        path = Path(folder) / f"{case}.{mode}.{RANK}"
        if mode == "whole":
            result, kept = train(case, points)
            path.write_bytes(pickle.dumps((result, kept)))
        else:
            _, kept = pickle.loads((Path(folder) / f"{case}.whole.{RANK}").read_bytes())
            found = {}
            for at, state in kept.items():
                for other in range(TASKS):
                    state["own"] |= pickle.loads((Path(folder) / f"{case}.whole.{other}").read_bytes())[1][at]["own"]
                found[at] = train(case, state=state)[0]
            path.write_bytes(pickle.dumps(found))
