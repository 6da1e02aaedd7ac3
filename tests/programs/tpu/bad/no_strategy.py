"""A program that leaves the TPU alone."""

import keras
import tensorflow as tf

model = keras.Sequential([keras.Input([128]), keras.layers.Dense(128)])
model.compile(optimizer=keras.optimizers.SGD(0.01), loss="mse")
data = tf.data.Dataset.from_tensor_slices((tf.ones([2048, 128]), tf.ones([2048, 128])))
model.fit(data.batch(512, drop_remainder=True))  # warning: not-on-tpu
