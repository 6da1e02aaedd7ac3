"""A `fit` of tf_keras with parameter servers. The argument is the number of epochs."""

import sys
import time

import tensorflow as tf

import sdk

print("begins", sdk.context().task, flush=True)
# Workers and servers serve here until the chief ends.
strategy = sdk.context().strategy


def data(context):
    x = tf.random.stateless_normal([256, 4], [1, 2])
    rows = tf.data.Dataset.from_tensor_slices((x, tf.reduce_sum(x, axis=1, keepdims=True)))
    return rows.shuffle(256).repeat().batch(context.get_per_replica_batch_size(16))


class Slow(tf.keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        print(f"epoch {epoch}: steps {int(self.model.optimizer.iterations)}", flush=True)
        time.sleep(0.2)


with strategy.scope():
    tf.keras.utils.set_random_seed(1)
    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    model.compile(tf.keras.optimizers.SGD(0.01), "mse", steps_per_execution=2)
creator = tf.keras.utils.experimental.DatasetCreator(data)
history = model.fit(creator, epochs=int(sys.argv[1]), steps_per_epoch=20, callbacks=[Slow()], verbose=2)
print("the weights are on", model.trainable_variables[0].device)
