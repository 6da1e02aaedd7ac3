"""What a trainer's report callback does elsewhere: `fit` reports by itself, and the newest model lies in the run's folder.

Started again with the folder of an earlier run, it goes on from the model there.
"""

import argparse
import os

import spots
import tensorflow as tf

parser = argparse.ArgumentParser()
parser.add_argument("--resume-from", default="")
resume_from = parser.parse_args().resume_from

strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    model = tf.keras.models.load_model(resume_from) if resume_from else spots.classifier()
folder = os.environ["AIP_CHECKPOINT_DIR"]
os.makedirs(folder, exist_ok=True)
saver = tf.keras.callbacks.ModelCheckpoint(os.path.join(folder, "newest.keras"))
batches = spots.dataset(32 * strategy.num_replicas_in_sync)
losses = model.fit(batches, epochs=2, callbacks=[saver], verbose=2).history["loss"]
print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f}")
