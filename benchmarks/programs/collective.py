"""The program of the scaling benchmark: sums vectors of several sizes over all tasks, as the gradients of a step are summed.

Each task writes, by size, the median seconds of one sum and the CPU seconds that it took of this task, as JSON. With
STEP_PARAMETERS it also trains a dense network of about as many parameters, to compare a step with what its sum predicts.
"""

import json
import os
import statistics
import time
from pathlib import Path

import keras
import tensorflow as tf

SIZES = json.loads(os.environ["SIZES"])
BUDGET_S = float(os.environ.get("BUDGET_S", "2"))
MEASURED = Path(os.environ["MEASURED"])

strategy = tf.distribute.MultiWorkerMirroredStrategy()
TASK = strategy.cluster_resolver.task_type + str(strategy.cluster_resolver.task_id)


RESOLVER = strategy.cluster_resolver
IS_FIRST = RESOLVER.task_id == 0 and (RESOLVER.task_type == "chief" or "chief" not in RESOLVER.cluster_spec().jobs)


@tf.function
def agreed(number):
    """Return the first task's number in every task: they must make the same count of sums."""
    return strategy.reduce("SUM", strategy.run(lambda: number if IS_FIRST else 0.0 * number), axis=None)


def timed(work):
    """Return the median seconds and the CPU seconds of one call."""
    for _ in range(3):
        work()
    started = time.perf_counter()
    work()
    once = time.perf_counter() - started
    count = int(agreed(tf.constant(float(max(5, min(200, BUDGET_S / once))))))
    times, used = [], time.process_time()
    for _ in range(count):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return {
        "s": statistics.median(times),
        "fast_s": sorted(times)[len(times) // 10],
        "cpu_s": (time.process_time() - used) / count,
        "count": count,
    }


def a_sum(size):
    vector = tf.ones([max(1, size // 4)])

    @tf.function
    def summed():
        def replica():
            return tf.reduce_sum(tf.distribute.get_replica_context().all_reduce("SUM", vector)[:1])

        return strategy.run(replica)

    return lambda: float(strategy.experimental_local_results(summed())[0])


def training(parameters):
    """Return a step of a dense network with two equal layers, and what its backward pass takes without others."""
    width = max(8, int((parameters / 2) ** 0.5))
    with strategy.scope():
        model = keras.Sequential([keras.Input((width,)), keras.layers.Dense(width, "relu"), keras.layers.Dense(width)])
        optimizer = keras.optimizers.SGD(0.01)
        optimizer.build(model.trainable_variables)
    batch = tf.ones([64, width])

    def gradients():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(batch, training=True) ** 2)
        return loss, tape.gradient(loss, model.trainable_variables)

    def replica():
        loss, found = gradients()
        optimizer.apply(found, model.trainable_variables)
        return loss

    @tf.function
    def together():
        return strategy.reduce("SUM", strategy.run(replica), axis=None)

    @tf.function
    def alone():
        def replica():
            loss, found = gradients()
            return loss + sum(tf.reduce_sum(each) for each in found)

        return strategy.run(replica)

    size = sum(4 * int(tf.size(each)) for each in model.trainable_variables)
    return size, (lambda: float(together())), (lambda: float(strategy.experimental_local_results(alone())[0]))


found = {"sums": {str(size): timed(a_sum(size)) for size in SIZES}}
if "STEP_PARAMETERS" in os.environ:
    found["steps"] = []
    for parameters in json.loads(os.environ["STEP_PARAMETERS"]):
        size, together, alone = training(parameters)
        found["steps"].append({"bytes": size, "together": timed(together), "alone": timed(alone)})
(MEASURED / f"{TASK}.json").write_text(json.dumps(found))
