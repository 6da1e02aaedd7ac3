"""The multi-worker tutorial's habits: count the workers in TF_CONFIG, batch for all of them, `fit` on each."""

import json
import os

import spots
import tensorflow as tf

config = json.loads(os.environ["TF_CONFIG"])
workers = len(config["cluster"]["worker"])
strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    model = spots.classifier()
history = model.fit(spots.dataset(32 * workers, repeat=True), epochs=3, steps_per_epoch=8, verbose=2)
losses = history.history["loss"]
print(f"workers={workers} replicas={strategy.num_replicas_in_sync} loss={losses[-1]:.6f}")
if losses[-1] >= losses[0]:
    raise SystemExit("did not learn")
