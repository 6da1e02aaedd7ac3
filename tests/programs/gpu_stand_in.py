"""Questions, settings and models of programs for GPUs, and mistakes with strategies. Writes its results to `seen.json`."""

import json
import os
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.client import device_lib

seen = {}
gpus = tf.config.list_physical_devices("GPU")
seen["physical"] = [gpu.name for gpu in gpus]
for gpu in gpus:
    tf.config.experimental.set_memory_growth(gpu, True)
tf.config.set_visible_devices(gpus[:3], "GPU")
# The second one is two logical devices: four in all.
try:
    tf.config.set_logical_device_configuration(gpus[1], [tf.config.LogicalDeviceConfiguration()] * 2)
except ValueError as error:
    seen["no limit"] = str(error)
limited = tf.config.LogicalDeviceConfiguration(memory_limit=1024)
tf.config.set_logical_device_configuration(gpus[1], [limited, limited])


def names(devices):
    return [device.name for device in devices]


def fitted(model, features, **options):
    return model.fit(features, np.ones((len(features), 1), "float32"), verbose=0, **options)


def dense():
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])


def attempt(function):
    try:
        return function()
    except (ValueError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"


def main():
    seen["logical"] = names(tf.config.list_logical_devices("GPU"))
    seen["cpus"] = names(tf.config.list_logical_devices("CPU"))
    seen["growth"] = [tf.config.experimental.get_memory_growth(gpu) for gpu in gpus[:1]]
    seen["late"] = attempt(lambda: tf.config.experimental.set_memory_growth(gpus[0], False))
    seen["details"] = tf.config.experimental.get_device_details(gpus[0])["device_name"]
    seen["memory"] = sorted(tf.config.experimental.get_memory_info("GPU:0"))
    seen["local"] = [device.name for device in device_lib.list_local_devices() if device.device_type == "GPU"]
    with tf.device("/GPU:2"):
        seen["placed"] = tf.constant(1.0).device
    # Keras chooses a kernel by the devices: cuDNN's, or a convolution that exists for GPUs only.
    first = keras.Sequential([keras.Input((2, 8, 8)), keras.layers.Conv2D(3, 3, data_format="channels_first")])
    seen["channels first"] = list(first(np.ones((1, 2, 8, 8), "float32")).shape)
    seen["recurrent"] = list(keras.layers.LSTM(4)(np.ones((1, 6, 3), "float32")).shape)

    strategy = tf.distribute.MirroredStrategy(["GPU:0", "gpu:1"], cross_device_ops=tf.distribute.NcclAllReduce())
    seen["replicas"] = strategy.num_replicas_in_sync
    keras.mixed_precision.set_global_policy("mixed_float16")
    with strategy.scope():
        layers = [keras.layers.Dense(4), keras.layers.BatchNormalization(), keras.layers.Dense(1, dtype="float32")]
        model = keras.Sequential([keras.Input((3,)), *layers])
        model.compile("adam", "mse")
    keras.mixed_precision.set_global_policy("float32")
    seen["mixed"] = fitted(model, np.ones((9, 3), "float32"), batch_size=5).history["loss"]

    optimizer = keras.optimizers.SGD()
    with strategy.scope():
        inside = dense()
    inside.compile(optimizer, "mse")
    fitted(inside, np.ones((8, 3), "float32"))
    outside = dense()
    outside.compile("sgd", "mse")
    fitted(outside, np.ones((8, 3), "float32"))
    with strategy.scope():
        outside.compile("sgd", "mse")
    seen["outside"] = attempt(lambda: fitted(outside, np.ones((8, 3), "float32")))
    seen["multi worker"] = tf.distribute.MultiWorkerMirroredStrategy().num_replicas_in_sync
    seen["central storage"] = tf.distribute.experimental.CentralStorageStrategy().num_replicas_in_sync
    Path(os.environ["AIP_MODEL_DIR"], "seen.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    main()
