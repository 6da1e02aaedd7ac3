"""A step that keeps some examples only; tf.where with three arguments keeps the shape."""

import tensorflow as tf

resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="local")
tf.config.experimental_connect_to_cluster(resolver)
tf.tpu.experimental.initialize_tpu_system(resolver)
strategy = tf.distribute.TPUStrategy(resolver)

data = tf.data.Dataset.from_tensor_slices((tf.ones([2048, 128]), tf.ones([2048, 128])))
data = data.batch(512, drop_remainder=True)

with strategy.scope():
    weights = tf.Variable(tf.ones([128, 128]))


def step(x, y):
    kept = tf.boolean_mask(y, tf.reduce_sum(y, axis=1) > 0)  # warning: dynamic-shape
    y = tf.where(y > 0, y, tf.zeros_like(y)) + tf.reduce_mean(kept)

    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(tf.matmul(x, weights) - y))
    weights.assign_sub(0.01 * tape.gradient(loss, weights))


@tf.function
def train(iterator):
    strategy.run(step, args=next(iterator))


iterator = iter(strategy.experimental_distribute_dataset(data))
for _ in range(4):
    train(iterator)
