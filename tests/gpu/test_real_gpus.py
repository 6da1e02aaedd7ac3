"""What logical CPU devices cannot show: each test runs a program on the GPUs of this machine.

Without a GPU all are skipped, and two replicas need two of them.
"""

import json
import os
from pathlib import Path

import pytest

import sdk

GPUS = int(os.environ["TEST_GPUS"])
one_gpu = pytest.mark.skipif(GPUS < 1, reason="no GPU on this machine")
two_gpus = pytest.mark.skipif(GPUS < 2, reason=f"needs two GPUs; this machine has {GPUS}")
pytestmark = [pytest.mark.tensorflow, pytest.mark.full]

HEAD = """
import json, os
from pathlib import Path
import keras
import numpy as np
import tensorflow as tf

gpus = tf.config.list_physical_devices("GPU")

def write(**seen):
    Path(os.environ["AIP_MODEL_DIR"], f"{os.environ['PODLIFT_TASK']}.json").write_text(json.dumps(seen))

def fitted(model):
    x = np.random.default_rng(1).normal(size=(64, 8)).astype("float32")
    return model.fit(x, x[:, :1], batch_size=32, epochs=2, shuffle=False, verbose=0).history["loss"]

def dense():
    keras.utils.set_random_seed(1)
    return keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(1, dtype="float32")])
"""


@pytest.fixture
def on_gpus(write, root):
    """Run a program on GPUs of this machine, and return the output of each task."""

    def run(program, *, accelerator="t4", workers=1):
        script = write("train.py")
        script.write_text(HEAD + program)
        resources = sdk.Resources(accelerator=accelerator, workers=workers)
        target = sdk.Local(gpus="real", start="spawn")
        done = sdk.submit(sdk.Job("train.py", resources=resources), root=root, backend=target).result(600)
        return [json.loads(path.read_text()) for path in sorted(Path(done.model_dir).glob("*.json"))]

    return run


GROWTH = """
for gpu in gpus:
    tf.config.experimental.set_memory_growth(gpu, True)
with tf.device("/GPU:0"):
    small = tf.reduce_sum(tf.ones([1024, 1024]))
before = tf.config.experimental.get_memory_info("GPU:0")["current"]
with tf.device("/GPU:0"):
    large = tf.ones([64, 1024, 1024])
write(device=small.device, grown=tf.config.experimental.get_memory_info("GPU:0")["current"] - before)
"""


@one_gpu
def test_memory_grows_with_the_allocations_of_a_program(on_gpus):
    (seen,) = on_gpus(GROWTH)
    assert seen["device"].endswith("GPU:0")
    assert seen["grown"] >= 64 * 1024 * 1024 * 4


MIXED = """
plain = dense(); plain.compile("sgd", "mse")
keras.mixed_precision.set_global_policy("mixed_float16")
mixed = dense(); mixed.compile("sgd", "mse")
write(float32=fitted(plain), mixed=fitted(mixed), computes=mixed.layers[0].compute_dtype)
"""


@one_gpu
def test_mixed_precision_trains_nearly_as_float32_does(on_gpus):
    (seen,) = on_gpus(MIXED)
    assert seen["computes"] == "float16"
    assert seen["mixed"] == pytest.approx(seen["float32"], rel=0.02)


LOGICAL = """
limited = tf.config.LogicalDeviceConfiguration(memory_limit=1024)
tf.config.set_logical_device_configuration(gpus[0], [limited, limited])
names = [device.name for device in tf.config.list_logical_devices("GPU")]
one = dense(); one.compile("sgd", "mse")
strategy = tf.distribute.MirroredStrategy(names[:2])
with strategy.scope():
    two = dense(); two.compile("sgd", "mse")
write(replicas=strategy.num_replicas_in_sync, one=fitted(one), two=fitted(two), devices=list(strategy.extended.worker_devices))
"""


@one_gpu
def test_two_logical_gpus_train_as_one(on_gpus):
    (seen,) = on_gpus(LOGICAL)
    assert seen["replicas"] == 2
    assert all("GPU" in device for device in seen["devices"])
    assert seen["two"] == pytest.approx(seen["one"], rel=1e-3)


NCCL = """
options = tf.distribute.experimental.CommunicationOptions(
    implementation=tf.distribute.experimental.CommunicationImplementation.NCCL)
strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
with strategy.scope():
    model = dense(); model.compile("sgd", "mse")
write(replicas=strategy.num_replicas_in_sync, loss=fitted(model), devices=list(strategy.extended.worker_devices))
"""


@two_gpus
@pytest.mark.parametrize(("accelerator", "workers"), [("t4:2", 1), ("t4", 2)])
def test_nccl_exchanges_gradients_among_two_gpus_of_one_host(on_gpus, accelerator, workers):
    found = on_gpus(NCCL, accelerator=accelerator, workers=workers)
    assert [seen["replicas"] for seen in found] == [2] * workers
    assert all("GPU" in device for seen in found for device in seen["devices"])
    assert all(seen["loss"] == found[0]["loss"] for seen in found)
    assert found[0]["loss"][-1] < found[0]["loss"][0]
