"""Variables on the CPU, one replica on each device: CentralStorageStrategy, here with the one device that there is."""

import spots
import tensorflow as tf

strategy = tf.distribute.experimental.CentralStorageStrategy()
with strategy.scope():
    model = spots.classifier()
losses = model.fit(spots.dataset(64), epochs=3, verbose=2).history["loss"]
print(f"replicas={strategy.num_replicas_in_sync} loss={losses[-1]:.4f}")
if losses[-1] >= losses[0]:
    raise SystemExit("did not learn")
