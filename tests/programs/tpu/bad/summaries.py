"""A step within a step writes summaries, as TensorBoard's functions do: a histogram, a picture, a text."""

import tempfile

import tensorflow as tf

resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="local")
tf.config.experimental_connect_to_cluster(resolver)
tf.tpu.experimental.initialize_tpu_system(resolver)
strategy = tf.distribute.TPUStrategy(resolver)

data = tf.data.Dataset.from_tensor_slices((tf.ones([2048, 128]), tf.ones([2048, 128])))
data = data.batch(512, drop_remainder=True)

with strategy.scope():
    weights = tf.Variable(tf.ones([128, 128]))
writer = tf.summary.create_file_writer(tempfile.mkdtemp())


def counted(values):
    values = tf.cast(tf.reshape(values, [-1]), tf.float64)
    spread = tf.reduce_max(values) - tf.reduce_min(values)
    return tf.cond(spread > 0, lambda: values / spread, lambda: values)


def picture(values):
    return tf.io.encode_png(tf.image.convert_image_dtype(values[:8, :8, None], tf.uint8))


@tf.function
def train(iterator, number):
    def step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(tf.matmul(x, weights) - y))
        gradient = tape.gradient(loss, weights)
        weights.assign_sub(0.01 * gradient)
        text = tf.strings.as_string(loss)
        with writer.as_default(step=number):
            tf.summary.write("loss", loss)  # warning: host-call
            tf.summary.write("gradient", lambda: counted(gradient))  # warning: host-call
            tf.summary.write("x", lambda: picture(x))  # warning: host-call
            tf.summary.write("text", text)  # warning: host-call

    strategy.run(step, args=(next(iterator),))


iterator = iter(strategy.experimental_distribute_dataset(data))
for number in range(4):
    train(iterator, tf.constant(number, tf.int64))
