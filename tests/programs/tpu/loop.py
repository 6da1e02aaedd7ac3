"""The overview's loop of its own: the loss of each replica is divided by the global batch, and the sum is reported."""

import keras
import tensorflow as tf

resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="local")
tf.config.experimental_connect_to_cluster(resolver)
tf.tpu.experimental.initialize_tpu_system(resolver)
strategy = tf.distribute.TPUStrategy(resolver)

BATCH = 16 * strategy.num_replicas_in_sync
with strategy.scope():
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(1)])
    optimizer = keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)
    each = keras.losses.BinaryCrossentropy(from_logits=True, reduction="none")
    right = keras.metrics.BinaryAccuracy(threshold=0.0)


def train_step(inputs):
    features, labels = inputs
    with tf.GradientTape() as tape:
        predictions = model(features, training=True)
        loss = tf.nn.compute_average_loss(each(labels, predictions), global_batch_size=BATCH)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply(gradients, model.trainable_variables)
    right.update_state(labels, predictions)
    return loss


@tf.function
def distributed_train_step(inputs):
    losses = strategy.run(train_step, args=(inputs,))
    return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)


data = tf.data.Dataset.from_tensor_slices((tf.ones([1024, 8]), tf.ones([1024, 1]))).shuffle(1024).batch(BATCH)
for epoch in range(2):
    total, batches = 0.0, 0
    for inputs in strategy.experimental_distribute_dataset(data):
        total += distributed_train_step(inputs)
        batches += 1
    print(epoch, float(total) / batches, float(right.result()))
    right.reset_state()
