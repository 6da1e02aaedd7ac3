"""BackupAndRestore: a training that breaks off in its third epoch does not begin again when it is started again."""

import argparse
import os

import spots
import tensorflow as tf

parser = argparse.ArgumentParser()
parser.add_argument("--every", type=int, default=0, help="steps between backups; 0 for each epoch")
every = parser.parse_args().every or "epoch"


class BreakOff(tf.keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 2:
            raise KeyboardInterrupt


class Count(tf.keras.callbacks.Callback):
    epochs: tuple = ()

    def on_epoch_begin(self, epoch, logs=None):
        self.epochs = (*self.epochs, epoch)


def train(*callbacks: tf.keras.callbacks.Callback) -> None:
    with strategy.scope():
        model = spots.classifier()
    backup = tf.keras.callbacks.BackupAndRestore(
        os.path.join(os.environ["AIP_CHECKPOINT_DIR"], "backup"), save_freq=every
    )
    model.fit(spots.dataset(64, repeat=True), epochs=4, steps_per_epoch=8, callbacks=[backup, *callbacks], verbose=2)


strategy = tf.distribute.MultiWorkerMirroredStrategy()
os.makedirs(os.environ["AIP_CHECKPOINT_DIR"], exist_ok=True)
try:
    train(BreakOff())
except KeyboardInterrupt:
    print("broken off")
count = Count()
train(count)
print("epochs of the second training:", *count.epochs)
if count.epochs[0] == 0:
    raise SystemExit("it did not go on: it began again")
