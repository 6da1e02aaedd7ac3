"""The cases of `agreement` by one device and, in the same process, by MirroredStrategy with 1, 2 and all GPUs.

A program for GPUs like anybody's: it knows nothing of stand-ins. Each strategy writes to a folder of its own.
"""

import os
import sys
from pathlib import Path

import agreement
import tensorflow as tf


def strategies():
    """Yield each strategy with the name of its folder."""
    gpus = tf.config.list_physical_devices("GPU")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    yield "one", tf.distribute.get_strategy()
    for count in (1, 2):
        if count < len(gpus):
            yield str(count), mirrored([f"/gpu:{index}" for index in range(count)])
    yield str(len(gpus)), mirrored()


def mirrored(devices=None):
    # A process cannot have groups of two sizes with the same key; programs have one strategy, and TensorFlow's tests do this.
    tf.distribute.MirroredStrategy._collective_key_base += 100_000
    return tf.distribute.MirroredStrategy(devices)


def main(names):
    for name, strategy in strategies():
        agreement.write(Path(os.environ["AIP_MODEL_DIR"]) / name, strategy, names)


if __name__ == "__main__":
    main(sys.argv[1:] or list(agreement.CASES))
