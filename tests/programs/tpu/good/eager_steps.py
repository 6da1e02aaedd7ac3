"""A loop that runs each step by itself, outside of any tf.function, on data that each replica's function makes."""

import tensorflow as tf

resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="local")
tf.config.experimental_connect_to_cluster(resolver)
tf.tpu.experimental.initialize_tpu_system(resolver)
strategy = tf.distribute.TPUStrategy(resolver)

with strategy.scope():
    weights = tf.Variable(tf.ones([128, 128]))


@tf.function(jit_compile=True)
def step(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.matmul(x, weights))
    weights.assign_sub(0.01 * tape.gradient(loss, weights))
    return loss


def batches(context):
    return tf.data.Dataset.from_tensors(tf.ones([16, 128])).repeat(100)


for x in strategy.distribute_datasets_from_function(batches):
    losses = strategy.run(step, args=(x,))
    print(strategy.reduce(tf.distribute.ReduceOp.MEAN, losses, axis=None).numpy())
