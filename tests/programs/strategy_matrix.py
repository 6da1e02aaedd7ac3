"""A small training by each strategy, as `fit` and as a loop: its losses and weights have to equal one device's.

Columns are named on the command line: "one" is a process without a strategy, "mirrored-2" has two replicas. `tf.keras` is
Keras 3 or tf_keras, as the job says. Each task writes its results to `$AIP_MODEL_DIR/<column>-<task>.json`.
"""

import json
import os
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import strategies
import tensorflow as tf
from tensorflow import keras

BATCH, EPOCHS = 40, 2
VERSIONS = {"tensorflow": tf.__version__, "keras": sys.modules[keras.Model.__module__.partition(".")[0]].__version__}
# 107: the last batch of 27 is not divided evenly by two replicas, and not by four.
SIZES = {"even": 120, "uneven": 107, "batch norm": 120}
TASK = json.loads(os.environ.get("TF_CONFIG", "{}")).get("task", {"type": "alone", "index": 0})


def arrays(case):
    size, random = SIZES[case], np.random.default_rng(3)
    x = random.normal(size=(size, 6)).astype("float32")
    y = (x @ random.normal(size=(6, 2)) + 0.1 * random.normal(size=(size, 2)) + 1).astype("float32")
    weight = random.integers(0, 4, size=size).astype("float32") if case == "uneven" else np.ones(size, "float32")
    return x, y, weight


def made(case, synchronized):
    keras.utils.set_random_seed(1)
    norm = [keras.layers.BatchNormalization(synchronized=synchronized)] if case == "batch norm" else []
    layers = [keras.layers.Dense(5, activation="tanh"), *norm, keras.layers.Dense(2)]
    model = keras.Sequential([keras.Input((6,)), *layers])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


def batches(case):
    return tf.data.Dataset.from_tensor_slices(arrays(case)).batch(BATCH)


def by_fit(strategy, case):
    served = isinstance(strategy, tf.distribute.ParameterServerStrategy)
    with strategy.scope():
        model = made(case, synchronized=not served)
    data, steps = batches(case), None
    if served:
        data, steps = data.repeat(), len(data)
    history = model.fit(data, epochs=EPOCHS, steps_per_epoch=steps, verbose=0).history
    return {"loss": history["loss"], **weights_of(model)}


def by_loop(strategy, case):
    """The custom loop of TensorFlow's tutorials: per-example losses over the size of the full global batch."""
    served = isinstance(strategy, tf.distribute.ParameterServerStrategy)
    with strategy.scope():
        model = made(case, synchronized=not served)
        model.optimizer.build(model.trainable_variables)

    def on_replica(x, y, weight):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x, training=True) - y), axis=-1)
            value = tf.reduce_sum(loss * weight) / BATCH
        gradients = tape.gradient(value, model.trainable_variables)
        model.optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return value

    @tf.function
    def step(batch):
        return strategy.reduce("SUM", strategy.run(on_replica, args=batch), axis=None)

    if served:
        take = through_servers(strategy, step)
        data = batches(case)
    else:
        take, data = step, strategy.experimental_distribute_dataset(batches(case))
    return {"loss": [float(take(batch)) for _ in range(EPOCHS) for batch in data], **weights_of(model)}


def through_servers(strategy, step):
    """Return a step that ends before the next one begins, on whatever worker: the servers then see one order of updates."""
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)

    def take(batch):
        value = coordinator.schedule(step, args=(batch,))
        coordinator.join()
        return value.fetch()

    return take


def weights_of(model):
    return {f"weights {index}": value.tolist() for index, value in enumerate(model.get_weights())}


def main(columns, styles):
    folder = Path(os.environ["AIP_MODEL_DIR"])
    folder.mkdir(parents=True, exist_ok=True)
    for column in columns.split(","):
        strategy = strategies.made(column)
        found = {"versions": VERSIONS}
        for style in styles:
            run = {"fit": by_fit, "loop": by_loop}[style]
            for case in SIZES:
                print(column, style, case, flush=True)
                try:
                    found[f"{style} {case}"] = run(strategy, case)
                except Exception as error:
                    found[f"{style} {case}"] = {"error": f"{type(error).__name__}: {error}"[:1000]}
        (folder / f"{column}-{TASK['type']}-{TASK['index']}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:] or ["fit", "loop"])
