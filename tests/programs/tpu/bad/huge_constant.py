"""A step that holds its data as a constant of the program."""

import numpy as np
import tensorflow as tf

resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="local")
tf.config.experimental_connect_to_cluster(resolver)
tf.tpu.experimental.initialize_tpu_system(resolver)
strategy = tf.distribute.TPUStrategy(resolver)

examples = np.ones([4096, 1024], "float32")
data = tf.data.Dataset.from_tensor_slices(tf.range(4096)).batch(512, drop_remainder=True)
with strategy.scope():
    weights = tf.Variable(tf.ones([1024, 128]))


def step(index):
    x = tf.gather(tf.constant(examples), index)  # warning: constant
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(tf.matmul(x, weights)))
    weights.assign_sub(0.01 * tape.gradient(loss, weights))


@tf.function
def train(iterator):
    strategy.run(step, args=(next(iterator),))


iterator = iter(strategy.experimental_distribute_dataset(data))
for _ in range(4):
    train(iterator)
