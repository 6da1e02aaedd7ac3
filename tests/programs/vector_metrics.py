"""Trains with metrics that are no single number, and with a callback that adds values of every kind to the logs."""

import json
import os
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
if "legacy" in sys.argv:
    os.environ["TF_USE_LEGACY_KERAS"] = "1"
    import tf_keras as keras
else:
    import keras
import numpy as np
import tensorflow as tf

import sdk

CLASSES, LONG = 3, 40


class PerClass(keras.metrics.Metric):
    """How many examples of each class there are, or of as many columns as asked for."""

    def __init__(self, size, name):
        super().__init__(name=name)
        self.counts = self.add_weight(shape=(size,), initializer="zeros", name="counts")
        self.size = size

    def update_state(self, y_true, y_pred, sample_weight=None):
        columns = tf.reduce_sum(tf.cast(y_true, "float32"), axis=0)
        self.counts.assign_add(tf.tile(columns, [-(-self.size // CLASSES)])[: self.size])

    def reset_state(self):
        self.counts.assign(tf.zeros(self.size))

    def result(self):
        return tf.convert_to_tensor(self.counts)


class Adds(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        logs |= {
            "text": "warm-up",
            "nothing": None,
            "array": np.array([1.5, 2.5], "float32"),
            "nested": {"low": [1, 2], "high": 3},
            "nan": float("nan"),
            "flag": True,
            "integer": 7,
            "of_numpy": np.float16(0.5),
            "tensor": tf.constant([1, 2, 3], tf.bfloat16),
            "object": sdk.Limits(),
            "one": np.array([4.0]),
        }


class Stops(keras.callbacks.Callback):
    """Fails the first attempt in the middle of the second fit, when the first one is over."""

    def on_train_batch_end(self, batch, logs=None):
        folder = Path(os.environ["PODLIFT_RUN"])
        if "stops" in sys.argv and batch == 1 and self.params["epochs"] == 3 and not (folder / "stopped").exists():
            (folder / "stopped").touch()
            os.kill(os.getpid(), 9)


def main():
    keras.utils.set_random_seed(1)
    random = np.random.default_rng(2)
    x = random.normal(size=(48, 4)).astype("float32")
    y = np.eye(CLASSES, dtype="float32")[random.integers(0, CLASSES, 48)]
    with sdk.context().strategy.scope():
        model = keras.Sequential([keras.layers.Dense(CLASSES, activation="softmax")])
        metrics = [keras.metrics.F1Score(name="f1_score"), PerClass(CLASSES, "seen"), PerClass(LONG, "long")]
        model.compile("sgd", "categorical_crossentropy", metrics=metrics)
    for index, epochs in enumerate((2, 3)):
        given = {"epochs": epochs, "batch_size": 16, "verbose": 0, "validation_data": (x[:20], y[:20])}
        history = model.fit(x, y, callbacks=[Adds(), Stops()], **given).history
        if sdk.context().is_chief:
            told = {name: [np.asarray(each).tolist() for each in values] for name, values in history.items()}
            kinds = {name: type(values[0]).__name__ for name, values in history.items()}
            where = Path(os.environ["PODLIFT_RUN"], f"fit-{index}-{os.environ['PODLIFT_ATTEMPT']}.json")
            where.write_text(json.dumps([told, kinds], default=str))
    if sdk.context().is_chief:
        np.savez(Path(os.environ["PODLIFT_RUN"], "weights.npz"), *model.get_weights())


main()
