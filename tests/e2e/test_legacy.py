"""`keras="legacy"`: the same road with tf_keras."""

from __future__ import annotations

import pytest

import sdk

pytestmark = pytest.mark.tensorflow

PROGRAM = """
    import numpy as np
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    x = np.arange(64, dtype="float32").reshape(32, 2) / 64
    y = x.sum(axis=1, keepdims=True)
    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(2,))])
        model.compile(optimizer=tf.keras.optimizers.SGD(0.1), loss="mse")
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
    model.fit(data, epochs=2, verbose=0)
    print("keras", tf.keras.Model.__module__)

    import gc
    import weakref

    def uses(method):
        more = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
        try:
            method(more)
        except TypeError:
            pass
        return weakref.ref(more)

    alone = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(2,))])
    alone.compile(loss="mse", run_eagerly=True)
    alone.train_step = lambda batch: int("a" "b" + batch)  # fails
    kept = [uses(lambda data: alone.evaluate(data, verbose=0)), uses(lambda data: alone.fit(data, verbose=0))]
    gc.collect()
    for _ in tf.data.Dataset.range(1):  # waits for the release of what was dropped
        pass
    print("kept", sum(each() is not None for each in kept))
"""


@pytest.mark.full
def test_legacy_keras_trains_on_two_workers_up_to_max_steps_and_returns_its_metrics(write) -> None:
    write("train.py", PROGRAM)
    resources, code, limits = sdk.Resources(workers=2), sdk.Code(keras="legacy"), sdk.Limits(max_steps=6)
    run = sdk.submit(sdk.Job("train.py", resources=resources, code=code, limits=limits))
    result = run.result(300)
    assert [(record["epoch"], record["step"]) for record in run.metrics()] == [(1, 4), (2, 6)]
    assert result.metrics["loss"] is not None
    printed = [line.text for line in run.logs(task="worker-0")]
    assert any("tf_keras" in line for line in printed)
    assert "kept 0" in printed, "the data of an evaluation and of a fit that failed stays in memory"
