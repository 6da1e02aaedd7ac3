"""A gang that resumes when no epoch is left, with a worker that looks late, or on a disk that the chief does not have.

`late.py BACKUP TEMP [die|late]`: with `die`, each task kills itself between its last backup and the end of training; with
`late`, the worker is slow to look for the backup. BACKUP may name the task: `{task}`.
"""

import json
import os
import signal
import sys
import time

BACKUP, TEMP, *MODE = sys.argv[1:]
TASK = json.loads(os.environ["TF_CONFIG"])["task"]["type"]

from sdk.runtime.patches import chief_writes, install, restore_together  # noqa: E402

cures = [] if "alone" in MODE else restore_together.patches()
install([*cures, *(chief_writes.patches(TEMP) if TASK == "worker" else [])])

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

keras = tf.keras


def die(logs):
    os.kill(os.getpid(), signal.SIGKILL)


strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(optimizer=keras.optimizers.SGD(0.1), loss=keras.losses.MeanSquaredError())
data = tf.data.Dataset.from_tensor_slices((np.ones((16, 4), "float32"), np.ones((16, 1), "float32"))).batch(8)
callbacks = [keras.callbacks.BackupAndRestore(BACKUP.format(task=TASK))]
if "die" in MODE:
    callbacks.insert(0, keras.callbacks.LambdaCallback(on_train_end=die))
if "late" in MODE and TASK == "worker":
    callbacks.insert(0, keras.callbacks.LambdaCallback(on_train_begin=lambda logs: time.sleep(2)))
history = model.fit(data, epochs=2, verbose=0, callbacks=callbacks)
print("epochs:", history.epoch)
