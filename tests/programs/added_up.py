"""Adds up tensors by TensorFlow's collectives as they are by default, and by a ring; writes what each gave."""

import json
import os
from pathlib import Path

import numpy as np
import tensorflow as tf

COMMUNICATION = tf.distribute.experimental.CommunicationOptions
RING = COMMUNICATION(implementation=tf.distribute.experimental.CommunicationImplementation.RING)
strategy = tf.distribute.MultiWorkerMirroredStrategy()
rank = strategy.cluster_resolver.task_id if strategy.cluster_resolver.task_type == "worker" else -1
random = np.random.default_rng(rank + 5)
seen = {}


def reduced(name, tensor, how="SUM"):
    """Reduce it in a tf.function both ways, in the same order on all tasks."""

    @tf.function(autograph=False)
    def both():
        def on_replica():
            context = tf.distribute.get_replica_context()
            return context.all_reduce(how, tensor), context.all_reduce(how, tensor, RING)

        return strategy.run(on_replica)

    by_default, by_ring = (tf.convert_to_tensor(value).numpy() for value in both())
    seen[name] = bool(np.array_equal(by_default, by_ring)) and by_default.shape == by_ring.shape


for kind in ("float16", "float32", "float64", "int32", "int64"):
    for shape in ((), (7, 3), (1_100_000,)):
        reduced(f"{kind} {shape}", tf.constant((100 * random.normal(size=shape)).astype(kind)))
reduced("mean", tf.constant(random.normal(size=5)), "MEAN")
rows = tf.constant(random.normal(size=(4 + rank, 3)).astype("float32"))
reduced("slices of different lengths", tf.IndexedSlices(rows, tf.range(4 + rank), tf.constant([9, 3])))

table = tf.Variable(tf.ones(3))


def summed(size):
    def on_replica():
        return tf.distribute.get_replica_context().all_reduce("SUM", tf.reduce_sum(table) * tf.ones(size))

    return tf.function(lambda: tf.reduce_sum(strategy.run(on_replica)), autograph=False)


loss, weight = summed(5), summed(2)


@tf.function
def in_a_loop():
    found = tf.zeros(())
    for _ in tf.range(20):
        found += loss() + weight()
    return found + weight() + loss()


# Functions that only read a variable have no order but that of their collectives.
seen["functions in a loop"] = float(in_a_loop()) == 21 * 3.0 * (5 + 2) * strategy.num_replicas_in_sync
Path(os.environ["AIP_MODEL_DIR"], f"{os.environ['PODLIFT_TASK']}.json").write_text(json.dumps(seen))
