"""A step that counts in 64 bits; identifiers that are only looked up cost nothing."""

import tensorflow as tf

resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="local")
tf.config.experimental_connect_to_cluster(resolver)
tf.tpu.experimental.initialize_tpu_system(resolver)
strategy = tf.distribute.TPUStrategy(resolver)

data = tf.data.Dataset.from_tensor_slices((tf.ones([2048, 128]), tf.ones([2048, 128])))
data = data.batch(512, drop_remainder=True)

with strategy.scope():
    weights = tf.Variable(tf.ones([128, 128]))
    table = tf.Variable(tf.ones([16, 128]))


def step(x, y):
    numbers = tf.cast(y, tf.int64)
    total = tf.matmul(numbers, numbers, transpose_b=True)  # warning: int64
    rows = tf.gather(table, tf.zeros([64], tf.int64))
    y = y + rows + tf.cast(tf.reduce_sum(total), tf.float32)

    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(tf.matmul(x, weights) - y))
    weights.assign_sub(0.01 * tape.gradient(loss, weights))


@tf.function
def train(iterator):
    strategy.run(step, args=next(iterator))


iterator = iter(strategy.experimental_distribute_dataset(data))
for _ in range(4):
    train(iterator)
