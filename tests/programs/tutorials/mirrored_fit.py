"""One machine, several devices: `fit` and `evaluate` under MirroredStrategy on two logical CPUs."""

import spots
import tensorflow as tf

(cpu,) = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
batches = spots.dataset(32 * strategy.num_replicas_in_sync)
with strategy.scope():
    model = spots.classifier()
model.fit(batches.cache().prefetch(2), epochs=4, validation_data=batches, verbose=2)
loss, accuracy = model.evaluate(batches, verbose=0)
print(f"replicas={strategy.num_replicas_in_sync} accuracy={accuracy:.2f}")
if accuracy < 0.9:
    raise SystemExit("did not learn")
