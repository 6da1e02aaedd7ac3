"""The cases of `agreement` by strategies that are named on the command line, one after the other in one process.

"one" is one device; "mirrored-2", "multi_worker-2" and "central_storage-2" have two GPUs. Each writes to a folder of its name.
The program is an ordinary one for GPUs: it knows nothing of stand-ins.

Usage: python agreement_on_gpus.py STRATEGY[,STRATEGY...] CASE...
"""

import os
import sys
from pathlib import Path

import agreement
import tensorflow as tf

GPUS = tf.config.list_physical_devices("GPU")


def mirrored(count):
    names = [f"/gpu:{index}" for index in range(count)]
    return tf.distribute.MirroredStrategy(None if count == len(GPUS) else names)


def multi_worker(count):
    assert count == len(GPUS), "it has no argument for devices"
    return tf.distribute.MultiWorkerMirroredStrategy()


def central_storage(count):
    names = [f"/gpu:{index}" for index in range(count)]
    return tf.distribute.experimental.CentralStorageStrategy(None if count == len(GPUS) else names)


def strategy_of(name):
    kind, _, count = name.partition("-")
    if kind == "one":
        return tf.distribute.get_strategy()
    for strategy in (tf.distribute.MirroredStrategy, tf.distribute.MultiWorkerMirroredStrategy):
        # Groups of two sizes need two keys in one process. Programs have one strategy; TensorFlow's own tests do this.
        strategy._collective_key_base += 100_000
    found = {"mirrored": mirrored, "multi_worker": multi_worker, "central_storage": central_storage}[kind](int(count))
    assert found.num_replicas_in_sync == int(count)
    return found


def main(strategies, names):
    for gpu in GPUS:
        tf.config.experimental.set_memory_growth(gpu, True)
    for name in strategies.split(","):
        agreement.write(Path(os.environ["AIP_MODEL_DIR"]) / name, strategy_of(name), names)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:] or list(agreement.CASES))
