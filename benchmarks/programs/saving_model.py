"""A model whose weights and Adam slots have a given size, data for it, and what the kernel knows of this process's memory."""

import os
import re

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"

import warnings

import keras
import numpy as np
import tensorflow as tf

BATCH = 32
warnings.filterwarnings("ignore", message=".*shuffle=True")
# Adam keeps two numbers beside every weight.
BYTES_PER_WEIGHT = 12


def build(megabytes):
    """Return a compiled model with built slots; layers of 50 MB, or of 3 MB where the state is small."""
    width = 2048 if megabytes >= 100 else 512
    layers = max(1, round(megabytes * 1e6 / (BYTES_PER_WEIGHT * width * width)))
    dense = [keras.layers.Dense(width, activation="relu") for _ in range(layers)]
    model = keras.Sequential([keras.Input((width,)), *dense, keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(1e-5), "mse")
    model.optimizer.build(model.trainable_variables)
    return model


def data(model, steps):
    """Return so many batches."""
    rng = np.random.default_rng(0)
    batch = (rng.random((BATCH, model.input_shape[1]), dtype="float32"), rng.random((BATCH, 1), dtype="float32"))
    return tf.data.Dataset.from_tensors(batch).repeat(steps)


def variables(model):
    """Return every variable of the state."""
    return [*model.variables, *model.optimizer.variables]


def size(model):
    """Return the bytes of the state."""
    return sum(np.asarray(variable.value).nbytes for variable in variables(model))


def memory(field):
    """Return this process's "VmRSS" or "VmHWM" (the peak since `forget_peak`) in bytes."""
    with open("/proc/self/status") as file:
        return int(re.search(rf"{field}:\s+(\d+) kB", file.read())[1]) * 1024


def forget_peak():
    """Begin a new peak of memory."""
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
