"""Two networks with an optimizer each, in one step of the program's own."""

import keras
import tensorflow as tf

resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="local")
tf.config.experimental_connect_to_cluster(resolver)
tf.tpu.experimental.initialize_tpu_system(resolver)
strategy = tf.distribute.TPUStrategy(resolver)

with strategy.scope():
    generator = keras.Sequential([keras.Input([128]), keras.layers.Dense(128, "relu"), keras.layers.Dense(128)])
    critic = keras.Sequential([keras.Input([128]), keras.layers.Dense(128, "relu"), keras.layers.Dense(128)])
    for_generator, for_critic = keras.optimizers.Adam(1e-4), keras.optimizers.Adam(1e-4)
    for_generator.build(generator.trainable_variables)
    for_critic.build(critic.trainable_variables)
data = tf.data.Dataset.from_tensors(tf.ones([128])).repeat(1024).batch(128, drop_remainder=True)


def step(real):
    noise = tf.random.normal([16, 128])
    with tf.GradientTape() as one, tf.GradientTape() as other:
        fake = generator(noise, training=True)
        ours = tf.reduce_mean(critic(fake, training=True))
        theirs = tf.reduce_mean(critic(real, training=True)) - ours
    mine = one.gradient(ours, generator.trainable_variables)
    for_generator.apply(mine, generator.trainable_variables)
    yours = other.gradient(theirs, critic.trainable_variables)
    for_critic.apply(yours, critic.trainable_variables)


@tf.function
def train(iterator):
    for _ in tf.range(4):
        strategy.run(step, args=(next(iterator),))


iterator = iter(strategy.experimental_distribute_dataset(data))
for _ in range(2):
    train(iterator)
