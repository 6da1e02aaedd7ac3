"""A step that works on text; reading lengths of it beforehand, in the input pipeline, is right."""

import tensorflow as tf

resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="local")
tf.config.experimental_connect_to_cluster(resolver)
tf.tpu.experimental.initialize_tpu_system(resolver)
strategy = tf.distribute.TPUStrategy(resolver)

texts = tf.data.Dataset.from_tensor_slices((tf.ones([2048, 128]), tf.fill([2048], "a b c")))
data = texts.map(lambda x, text: (x, tf.cast(tf.strings.length(text), tf.float32) * tf.ones([128])))
data = data.batch(512, drop_remainder=True)
with strategy.scope():
    weights = tf.Variable(tf.ones([128, 128]))


def step(x, y):
    names = tf.strings.as_string(y)  # refused: strings
    y = tf.cast(tf.strings.length(names), tf.float32)  # refused: strings
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(tf.matmul(x, weights) - y))
    weights.assign_sub(0.01 * tape.gradient(loss, weights))


@tf.function
def train(iterator):
    strategy.run(step, args=next(iterator))


iterator = iter(strategy.experimental_distribute_dataset(data))
for _ in range(4):
    train(iterator)
