"""A training program with `steps_per_execution`: on two replicas of one process, or on as many tasks as there are.

Trains the same model with one step and with several steps in an execution, and writes what it saw of both, as JSON, to
`$AIP_MODEL_DIR/<task>.json`.
"""

import json
import os
import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

BATCH = 20
EXAMPLES = 110  # five whole batches, and one of ten


def several_replicas():
    if "TF_CONFIG" in os.environ:
        return tf.distribute.MultiWorkerMirroredStrategy()
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def numbers():
    x = np.random.default_rng(0).normal(size=(EXAMPLES, 6)).astype("float32")
    return x, (x @ np.ones((6, 2))).astype("float32")


def train(strategy, each, shape):
    """`shape`: "finite", or "repeated" with an epoch that no whole number of executions fills."""
    x, y = numbers()
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH)
    steps = 5 if shape == "repeated" else None
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(5, activation="tanh"), keras.layers.Dense(2)])
        model.compile("adam", "mse", metrics=["mae"], steps_per_execution=each)
    endless = data.repeat() if steps else data
    history = model.fit(endless, epochs=2, steps_per_epoch=steps, verbose=0).history
    predicted = model.predict(endless.map(lambda x, y: x), steps=steps, verbose=0)
    return {
        "history": history,
        "steps": int(model.optimizer.iterations.numpy()),
        "weights": [weight.tolist() for weight in model.get_weights()],
        "evaluate": model.evaluate(endless, steps=steps, verbose=0),
        "predict": predicted.tolist(),
    }


def nested_loop(strategy, inside):
    """A loop of one's own whose step is a function, called by a loop that is one too, or by Python."""

    @tf.function
    def step(value):
        def on_replica():
            return tf.distribute.get_replica_context().all_reduce("SUM", tf.identity(value))

        return strategy.experimental_local_results(strategy.run(on_replica))[0]

    def loop():
        total = 0.0
        for number in tf.range(3):
            if number != 1:
                total += step(tf.cast(number, tf.float32))
        return total

    return float((tf.function(loop) if inside else loop)())


def main():
    strategy = several_replicas()
    seen = {"replicas": strategy.num_replicas_in_sync}
    for shape in ("finite", "repeated"):
        seen[shape] = {each: train(strategy, each, shape) for each in (1, 3)}
    seen["loop"] = [nested_loop(strategy, inside) for inside in (False, True)]
    folder = Path(os.environ["AIP_MODEL_DIR"])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{os.environ['PODLIFT_TASK']}.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    sys.exit(main())
