"""Every worker saves, because saving may be a collective; only worker 0 keeps what it saved, and all go on from that."""

import os

import spots
import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
resolver = strategy.cluster_resolver
first = resolver.task_type == "worker" and resolver.task_id == 0
SHARED = os.environ["AIP_MODEL_DIR"]


def own(path: str) -> str:
    """Return the path for the first worker, and one in a folder of its own for any other."""
    if first:
        return path
    folder = os.path.join(os.path.dirname(path), f"worker-{resolver.task_id}")
    os.makedirs(folder, exist_ok=True)
    return os.path.join(folder, os.path.basename(path))


def everybody_is_here() -> None:
    """Wait for all workers: a sum over them cannot be had before each has given its part."""
    float(strategy.reduce("SUM", strategy.run(lambda: tf.constant(1.0)), axis=None))


with strategy.scope():
    model = spots.classifier()
model.fit(spots.dataset(64), epochs=1, verbose=2)

os.makedirs(SHARED, exist_ok=True)
whole = os.path.join(SHARED, "whole.keras")
model.save(own(whole))
manager = tf.train.CheckpointManager(
    tf.train.Checkpoint(model=model), own(os.path.join(SHARED, "steps")), max_to_keep=1
)
manager.save()
if not first:
    tf.io.gfile.rmtree(os.path.dirname(own(whole)))
everybody_is_here()

expected = model.get_weights()[0]
again = tf.keras.models.load_model(whole)
if abs(again.get_weights()[0] - expected).max() > 0:
    raise SystemExit("the saved model differs")
model.fit(spots.dataset(64), epochs=1, verbose=0)
manager.checkpoint.restore(tf.train.latest_checkpoint(os.path.join(SHARED, "steps")))
if abs(model.get_weights()[0] - expected).max() > 0:
    raise SystemExit("the restored weights differ")
model.fit(spots.dataset(64), epochs=1, verbose=2)
everybody_is_here()
print("saved, restored:", sorted(os.listdir(SHARED)))
