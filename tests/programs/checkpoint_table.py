"""A tiny training with one feature that easily loses its state, as `fit` or as a custom loop. Generated data."""

import os
import sys

WORLD, STYLE, FEATURE = sys.argv[1:4]

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

import sdk  # noqa: E402

EPOCHS, EXAMPLES, BATCH = 3, 96, 12
ctx = sdk.context()
if WORLD == "mirrored":
    cpus = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpus[0], [tf.config.LogicalDeviceConfiguration()] * 4)
    strategy = tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(4)])
else:
    strategy = ctx.strategy

x = np.random.default_rng(0).normal(size=(EXAMPLES, 6)).astype("float32")
y = (x.sum(1, keepdims=True) > 0).astype("float32")
layers = keras.layers


def build() -> tuple[keras.Model, keras.optimizers.Optimizer]:
    middle = {"dropout": layers.Dropout(0.4), "batchnorm": layers.BatchNormalization()}
    parts = [keras.Input((6,)), layers.Dense(8, activation="relu")]
    parts += [middle[FEATURE]] if FEATURE in middle else []
    model = keras.Sequential([*parts, layers.Dense(1)])
    rate = keras.optimizers.schedules.ExponentialDecay(0.05, 3, 0.8) if FEATURE == "schedule" else 0.02
    optimizer = keras.optimizers.Adam(rate)
    if FEATURE == "lossscale":
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer, dynamic_growth_steps=5)
    return model, optimizer


def dataset() -> tf.data.Dataset:
    if FEATURE == "generator":

        def draw():
            for i in range(EXAMPLES):
                yield x[i], y[i]

        signature = (tf.TensorSpec((6,), tf.float32), tf.TensorSpec((1,), tf.float32))
        made = tf.data.Dataset.from_generator(draw, output_signature=signature)
        made = made.apply(tf.data.experimental.assert_cardinality(EXAMPLES))
    else:
        made = tf.data.Dataset.from_tensor_slices((x, y))
    if FEATURE == "shuffle":
        made = made.shuffle(EXAMPLES, seed=3)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return made.batch(BATCH, drop_remainder=True).with_options(options)


def fit() -> None:
    with strategy.scope():
        model, optimizer = build()
        model.compile(optimizer, keras.losses.BinaryCrossentropy(from_logits=True), metrics=["accuracy"])
    options = {"epochs": EPOCHS, "validation_data": (x[:24], y[:24]), "validation_batch_size": 12, "verbose": 0}
    if FEATURE == "earlystopping":
        stop = keras.callbacks.EarlyStopping(patience=1, min_delta=0.3, restore_best_weights=True)
        options["callbacks"] = [stop, keras.callbacks.ReduceLROnPlateau(patience=1, min_delta=0.3)]
    if FEATURE == "arrays":
        history = model.fit(x, y, batch_size=BATCH, **options).history
    else:
        history = model.fit(dataset(), **options).history
    print("history", {name: [float(value).hex() for value in values] for name, values in history.items()})


def loop() -> None:
    with strategy.scope():
        model, optimizer = build()
        optimizer.build(model.trainable_variables)
    loss_of = keras.losses.BinaryCrossentropy(from_logits=True, reduction="none")

    def step(batch):
        features, labels = batch
        with tf.GradientTape() as tape:
            loss = tf.nn.compute_average_loss(loss_of(labels, model(features, training=True)), global_batch_size=BATCH)
            seen = optimizer.scale_loss(loss) if FEATURE == "lossscale" else loss
        optimizer.apply(tape.gradient(seen, model.trainable_variables), model.trainable_variables)
        return loss

    @tf.function
    def distributed(batch):
        return strategy.reduce("SUM", strategy.run(step, args=(batch,)), axis=None)

    data = strategy.experimental_distribute_dataset(dataset())
    ckpt = ctx.checkpoint(model=model, optimizer=optimizer, data=data)
    ckpt.restore()
    for _ in range(ckpt.epoch, EPOCHS):
        for batch in ckpt.data:
            loss = distributed(batch)
            ckpt.step()
        print("loss", float(loss).hex())


print("pid", os.getpid(), flush=True)
fit() if STYLE == "fit" else loop()
