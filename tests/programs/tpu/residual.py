"""The talk's residual network, in small: the strategy is the only line that is new, and everything else stays."""

import keras
import tensorflow as tf

import sdk

strategy = sdk.context().strategy


def block(x, width):
    first = keras.layers.Conv2D(width, 3, padding="same")(x)
    first = keras.layers.Activation("relu")(keras.layers.BatchNormalization()(first))
    second = keras.layers.BatchNormalization()(keras.layers.Conv2D(width, 3, padding="same")(first))
    return keras.layers.Activation("relu")(keras.layers.Add()([x, second]))


with strategy.scope():
    pictures = keras.Input((32, 32, 3))
    x = keras.layers.Conv2D(64, 3, padding="same")(pictures)
    x = block(block(x, 64), 64)
    model = keras.Model(pictures, keras.layers.Dense(10)(keras.layers.GlobalAveragePooling2D()(x)))
    model.compile(
        optimizer=keras.optimizers.SGD(0.1, momentum=0.9),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )


def prepared(picture, label):
    return tf.image.random_flip_left_right(tf.cast(picture, tf.float32) / 255.0), label


data = tf.data.Dataset.from_tensors((tf.zeros([32, 32, 3], tf.uint8), tf.zeros([], tf.int32))).repeat(1024)
data = data.map(prepared, num_parallel_calls=tf.data.AUTOTUNE).batch(128, drop_remainder=True).prefetch(2)
model.fit(data, epochs=2)
model.evaluate(data)
