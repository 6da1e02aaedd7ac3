"""CentralStorageStrategy with several replicas under Keras 3: the mistake without the cure, and its effect."""

import pytest
from support import needs, python

pytestmark = [pytest.mark.tensorflow, pytest.mark.full]
needs("tensorflow")

PROGRAM = """
import keras, numpy as np, tensorflow as tf
import keras.src.backend.tensorflow.core as core
from sdk.runtime.patches import install
from sdk.runtime.patches.central_storage import PATCH

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
stock = tf.distribute.get_strategy()

def trained(strategy, *layers, eager=False):
    keras.utils.set_random_seed(1)
    x = np.random.default_rng(2).normal(size=(96, 4)).astype("float32")
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), *(make() for make in layers), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1), "mse", metrics=["mae", keras.metrics.AUC()], run_eagerly=eager)
    y = (x.sum(axis=1, keepdims=True) > 0).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(32)
    history = model.fit(data, epochs=2, verbose=0).history
    return np.concatenate([*history.values(), model.evaluate(data, verbose=0)])

def central():
    return tf.distribute.experimental.CentralStorageStrategy(["CPU:0", "CPU:1"])

# Without the cure.
one, two = trained(stock), trained(central())
assert abs(two[0] / one[0] - 1) > 1e-3, (one, two)
try:
    trained(central(), keras.layers.BatchNormalization)
except ValueError as error:
    assert "specify an aggregation method" in str(error)
else:
    raise AssertionError("BatchNormalization trains")

# A Keras that adds by itself.
assert PATCH.needed(core) and PATCH.applies(core)
adds, core.Variable.assign_add = core.Variable.assign_add, lambda variable, value: None
assert not PATCH.needed(core)
core.Variable.assign_add = adds

# With the cure.
install([PATCH])
for eager in (False, True):
    np.testing.assert_allclose(trained(central(), eager=eager), trained(stock, eager=eager), rtol=1e-5)
assert np.isfinite(trained(central(), lambda: keras.layers.Dropout(0.5), keras.layers.BatchNormalization)).all()
strategy = central()
with strategy.scope():
    mean = keras.metrics.Mean()
for value in (2.0, 4.0):
    strategy.run(lambda: mean.update_state(value))
assert (float(mean.total), float(mean.count)) == (12.0, 4.0)
strategy.run(mean.reset_state)
assert (float(mean.total), float(mean.count)) == (0.0, 0.0)
"""


def test_without_the_cure_keras_is_wrong_and_with_it_every_metric_equals_one_devices() -> None:
    python("-c", PROGRAM)
