"""Trains with an input that is too slow, in several ways, and prints how long the steps waited: as accounted, and in truth.

Usage: input_waits.py. Prints one JSON object: a pair of seconds for each way. The truth is the time between the end of one
step's own work and the beginning of the next one's, as the step itself reads the clock.
"""

import json
import tempfile
import time

from sdk.runtime.account import INPUT_WAIT, STEP, Account
from sdk.runtime.hooks.accounting import FitAccounting
from sdk.runtime.hooks.input_wait import InputWait
from sdk.runtime.hooks.starvation import StarvedInput
from sdk.runtime.patches import install

INPUT_S, WORK_S, BATCHES = 0.4, 0.05, 8
account = Account()
starved = StarvedInput(account, print)
watched = InputWait(account)
install([*FitAccounting(account, starved).patches(), *watched.patches()])

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
worked: list[tuple[float, float]] = []


def work(value: np.ndarray) -> np.ndarray:
    begun = time.monotonic()
    time.sleep(WORK_S)
    worked.append((begun, time.monotonic()))
    return value


def fetch(number: np.ndarray) -> np.ndarray:
    time.sleep(INPUT_S)
    return np.ones([2, 4], "float32")


def batches(count: int = BATCHES) -> tf.data.Dataset:
    def load(number: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        x = tf.ensure_shape(tf.numpy_function(fetch, [number], tf.float32), [2, 4])
        return x, x[:, :1]

    return tf.data.Dataset.range(count).map(load)


class Model(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, x: tf.Tensor) -> tf.Tensor:
        y = self.dense(x)
        done = tf.ensure_shape(tf.numpy_function(work, [tf.stop_gradient(y)], tf.float32), y.shape)
        return y + 0.0 * done


def model(each: int = 1) -> keras.Model:
    made = Model()
    made.build((None, 4))
    made.compile("sgd", "mse", steps_per_execution=each)
    return made


def truth() -> float:
    """Return the time between the steps; steps done at the same time count once."""
    spans = sorted(worked)
    end, waited = spans[0][1], 0.0
    for begun, ended in spans[1:]:
        waited += max(begun - end, 0.0)
        end = max(end, ended)
    return waited


def measured(train) -> tuple[float, float]:
    """Return the account of one training, and the truth."""
    worked.clear()
    before = account.spent(INPUT_WAIT)
    train()
    account.enter(STEP)
    account.enter(0)
    return (account.spent(INPUT_WAIT) - before) / 1e9, truth()


def loop() -> None:
    net, feed = model(), iter(batches(BATCHES + 1))
    step = tf.function(lambda x: net(x))
    step(next(feed)[0])
    # The wait for the next batch begins here.
    worked[:] = [(time.monotonic(), time.monotonic())]
    account.enter(STEP)
    for x, _ in feed:
        step(x)
        account.step(1)


def distributed() -> None:
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        net = model()
    feed = iter(strategy.experimental_distribute_dataset(batches(BATCHES + 1)))

    @tf.function
    def given(batch):
        strategy.run(lambda batch: net(batch[0]), args=(batch,))

    for _ in range(BATCHES):
        given(next(feed))
        account.step(1)


def mirrored_fit() -> None:
    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        net = model()
    net.fit(batches(), verbose=0)


ways = {
    "fit": lambda: model().fit(batches(), verbose=0),
    "fit on two devices": mirrored_fit,
    "a loop": loop,
    "a loop over distributed batches": distributed,
}
waits = {name: measured(way) for name, way in ways.items()}
account._spent[INPUT_WAIT] = account._spent[STEP] = 0
model().fit(batches(10), validation_data=batches(6), verbose=0)
account.enter(STEP)
validated = account.spent(INPUT_WAIT) / 1e9
# With a seed, TensorFlow numbers the draws of a function by its operations: there must be no more of them.
tf.random.set_seed(1)
waits["fit with a seed"] = measured(ways["fit"])
several = account.waited_ns
model(4).fit(batches(4), verbose=0)
several, account.waited_ns = account.waited_ns, several


class Program(tf.Module):
    @tf.function
    def step(self, iterator):
        return next(iterator)


# Batches that a program takes in its own functions stay as they are, and can be exported.
program, feed = Program(), iter(batches(4))
program.step(feed)
with tempfile.TemporaryDirectory() as folder:
    tf.saved_model.save(program, folder)
taken = program.step.get_concrete_function(feed)
unchanged = "Timestamp" not in {operation.type for operation in taken.graph.get_operations()}
unchanged &= account.waited_ns is several is None
# A loop of TensorFlow 1 may follow: its graph is its own.
with tf.Graph().as_default() as graph:
    watched.waited_ns()
    unchanged &= not graph.get_operations()
# A model with a function made before determinism was asked for trains on.
late = model()
late.fit(batches(2), verbose=0)
tf.config.experimental.enable_op_determinism()
late.fit(batches(2).map(lambda x, y: (x, y)), verbose=0)
late.evaluate(batches(2), verbose=0)
print(json.dumps({"waits": waits, "validated": validated, "unchanged": unchanged}))
