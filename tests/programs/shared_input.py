"""Which examples each of several tasks trains on, in pipelines that TensorFlow has to divide. Prints one JSON object."""

import json
import os
import tempfile

import numpy as np
import tensorflow as tf

import sdk

EXAMPLES = 24
ctx = sdk.context()
strategy = ctx.strategy
keras = tf.keras
x = np.arange(EXAMPLES, dtype="float32")[:, None] / EXAMPLES
y = 3 * x - 1


def files(count):
    """Return the names of TFRecord files with all examples between them."""
    folder = tempfile.mkdtemp()
    names = [os.path.join(folder, f"{number}.tfrecord") for number in range(count)]
    for number, name in enumerate(names):
        with tf.io.TFRecordWriter(name) as writer:
            for index in range(number, EXAMPLES, count):
                writer.write(str(index).encode())
    return names


def read(names, policy=None, batch=8):
    data = tf.data.TFRecordDataset(names).map(lambda text: tf.strings.to_number(text, tf.int32)).batch(batch)
    if policy is None:
        return data
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy[policy]
    return data.with_options(options)


def seen(data):
    """Return the examples that this task gets, one list for each batch."""
    parts = [strategy.experimental_local_results(batch) for batch in strategy.experimental_distribute_dataset(data)]
    return [[int(i) for part in each for i in np.ravel(part.numpy())] for each in parts]


def refused(data):
    try:
        strategy.experimental_distribute_dataset(data)
    except ValueError as error:
        return str(error)
    return ""


def losses(batch):
    """Return the losses of a fit on one file with a last batch smaller than the others."""
    data = read(files(1), batch=batch).map(lambda i: (tf.gather(x, i), tf.gather(y, i)))
    with strategy.scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, kernel_initializer="ones")])
        model.compile(keras.optimizers.SGD(0.1), "mse")
    history = model.fit(data, epochs=3, verbose=0).history
    return [float(loss) for loss in history["loss"]]


def undivided():
    """Return the elements that this task gets from three pipelines that TensorFlow does not divide."""
    off = tf.data.Options()
    off.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    whole = tf.data.Dataset.range(EXAMPLES)
    parts = [
        whole.batch(8).with_options(off),
        whole.shuffle(EXAMPLES).shard(*reversed(ctx.shard())).batch(4).with_options(off),
        whole.shuffle(EXAMPLES).batch(8).with_options(off),
    ]
    made = strategy.distribute_datasets_from_function(lambda _: whole.shuffle(EXAMPLES).batch(8))
    for number, part in enumerate(parts):
        if number == 2:
            print("The next data is not divided.", flush=True)
        parts[number] = seen(part)
    return [*parts, [[int(i) for i in strategy.experimental_local_results(batch)[0]] for batch in made]]


def in_a_graph():
    """Return whether data is distributed inside a function of TensorFlow, with names of known and unknown number."""

    def filtered(names):
        listed = tf.data.Dataset.from_tensor_slices(names).filter(lambda name: tf.strings.length(name) > 0)
        return listed.interleave(tf.data.TFRecordDataset).batch(8)

    @tf.function
    def count(make, names):
        found = tf.constant(0)
        for batch in strategy.experimental_distribute_dataset(make(names)):
            found += tf.size(strategy.experimental_local_results(batch)[0])
        return found

    return [int(count(make, files(2))) for make in (read, filtered)]


def misspelt():
    with strategy.scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1), "mse")
    try:
        model.fit(x, y, epoch=2)
    except TypeError as error:
        return str(error)


shuffled = tf.data.Dataset.range(EXAMPLES).shuffle(EXAMPLES)
if ctx.is_chief:
    # Data of the first task alone must not change the order of the data that all share.
    list(tf.data.Dataset.range(4).shuffle(4))
again = tf.data.Dataset.range(EXAMPLES).shuffle(EXAMPLES)
listed = tf.data.Dataset.from_tensor_slices(files(4)).filter(lambda name: tf.strings.length(name) > 0)
found = {
    "shard": ctx.shard(),
    "one file": seen(read(files(1))),
    "four files": seen(read(files(4))),
    "three files": seen(read(files(3))),
    "filtered names": seen(listed.interleave(tf.data.TFRecordDataset).map(lambda t: tf.strings.to_number(t)).batch(8)),
    "refused": [
        refused(read(files(1), "FILE")),
        refused(shuffled.batch(8).with_options(read(files(2), "FILE").options())),
    ],
    "shuffled": [seen(data.batch(8)) for data in (shuffled, shuffled, again)],
    "undivided": undivided(),
    "graph": in_a_graph(),
    "misspelt": misspelt(),
    "losses": {batch: losses(batch) for batch in (10, 5)},
}
print(json.dumps(found))
