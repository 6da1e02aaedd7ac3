"""A program that takes worker 0 for the chief, as programs do that were written for a cluster of workers only.

`mistaken.py SHARED TEMP`: each task saves to SHARED/model.keras, or to a folder of its own that it deletes afterwards.
"""

import json
import os
import sys

SHARED, TEMP = sys.argv[1:]
TASK = json.loads(os.environ["TF_CONFIG"])["task"]

from sdk.runtime.patches import chief_writes, install  # noqa: E402

cures = chief_writes.chief_patches() if TASK["type"] == "chief" else chief_writes.patches(TEMP)
install(cures)

import tensorflow as tf  # noqa: E402

keras = tf.keras
path = os.path.join(SHARED, "model.keras")
believes = TASK["type"] == "worker" and TASK["index"] == 0
strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
if not believes:
    path = os.path.join(SHARED, f"workertemp_{TASK['index']}", "model.keras")
    tf.io.gfile.makedirs(os.path.dirname(path))
model.save(path)
if not believes:
    tf.io.gfile.rmtree(os.path.dirname(path))
