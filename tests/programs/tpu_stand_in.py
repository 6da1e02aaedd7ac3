"""A training program for a TPU like anybody's: it knows nothing of podlift. Writes its results, as JSON, to its model folder.

Its argument is the name by which it looks for the TPU; "None" for none at all.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

BATCH = 16
seen = {}


def numbers():
    """Return five batches, and one example more that only one replica can have."""
    x = np.random.default_rng(0).normal(size=(5 * BATCH + 1, 6)).astype("float32")
    return x, (x @ np.ones((6, 2))).astype("float32")


def connect(name):
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=name)
    tf.config.experimental_connect_to_cluster(resolver)
    topology = tf.tpu.experimental.initialize_tpu_system(resolver)
    metadata = resolver.get_tpu_system_metadata()
    seen["devices"] = {
        "listed": [device.name for device in tf.config.list_logical_devices("TPU")],
        "accelerators": resolver.num_accelerators(),
        "cores": [metadata.num_cores, metadata.num_hosts, metadata.num_of_cores_per_host],
        "mesh": [int(side) for side in topology.mesh_shape],
    }
    return resolver


def fitted(strategy, each):
    x, y = numbers()
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH)
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(5, activation="tanh"), keras.layers.Dense(2)])
        model.compile("adam", "mse", metrics=["mae"], steps_per_execution=each)
    history = model.fit(data, epochs=2, verbose=0).history
    return {
        "history": history,
        "evaluate": model.evaluate(data, verbose=0),
        "predict": model.predict(x, batch_size=BATCH, verbose=0).tolist(),
        "weights": [weight.tolist() for weight in model.get_weights()],
    }


def looped(strategy):
    """A custom loop, of several steps in one function, over data that each host makes for itself."""
    x, y = numbers()

    def make(context):
        size = context.get_per_replica_batch_size(BATCH)
        return tf.data.Dataset.from_tensor_slices((x, y)).batch(size, drop_remainder=True).repeat()

    keras.utils.set_random_seed(2)
    with strategy.scope():
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(2)])
        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build(model.trainable_variables)
        steps = tf.Variable(0, dtype=tf.int64, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)
    folder = tempfile.mkdtemp()
    writer = tf.summary.create_file_writer(folder)

    @tf.function
    def train(iterator, count):
        def on_replica(batch):
            x, y = batch
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum((model(x, training=True) - y) ** 2) / BATCH
            optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
            steps.assign_add(1)
            with writer.as_default(step=steps.read_value()):
                # As a histogram does: it counts in double precision.
                tf.summary.write("loss", lambda: tf.cast(loss, tf.float64) * 2)

        for _ in tf.range(count):
            strategy.run(on_replica, args=(next(iterator),))

    train(iter(strategy.distribute_datasets_from_function(make)), tf.constant(5))
    writer.close()
    (events,) = Path(folder).iterdir()
    written = sum(b"loss" in record for record in tf.data.TFRecordDataset(str(events)).as_numpy_iterator())
    weights = [weight.tolist() for weight in model.get_weights()]
    return {"steps": int(steps.numpy()), "weights": weights, "summaries": written}


def exchanged(strategy):
    @tf.function
    def on_replica(value):
        context = tf.distribute.get_replica_context()
        gathered = context.all_gather(value, axis=0), context.all_gather(tf.cast(value, tf.int64), axis=0)
        return context.all_reduce("SUM", value), context.all_reduce("MEAN", value), *gathered

    number = lambda context: tf.constant([float(context.replica_id_in_sync_group)])  # noqa: E731
    mine = strategy.experimental_distribute_values_from_function(number)
    results = strategy.run(on_replica, args=(mine,))
    local = [[part.numpy().tolist() for part in strategy.experimental_local_results(result)] for result in results]
    return {
        "local": local,
        "gather": strategy.gather(mine, axis=0).numpy().tolist(),
        "reduce": float(strategy.reduce("SUM", mine, axis=0)),
    }


def refusals(strategy):
    alone = tf.Variable(0.0)

    @tf.function
    def wide():
        strategy.run(lambda: tf.distribute.get_replica_context().all_reduce("SUM", tf.ones([], tf.float64)))

    @tf.function
    def shared():
        strategy.run(lambda: alone.assign_add(tf.distribute.get_replica_context().all_reduce("SUM", tf.ones([]))))

    def embedding():
        tf.tpu.experimental.embedding.TPUEmbedding(None, None)

    def elsewhere():
        tf.distribute.cluster_resolver.TPUClusterResolver(tpu="somebody-elses")

    local = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="local").cluster_spec()
    found = []
    attempts = (shared, wide, embedding, elsewhere, lambda: local["worker"], lambda: local.as_dict()["worker"])
    for attempt in attempts:
        try:
            attempt()
        except (ValueError, TypeError, NotImplementedError, KeyError) as error:
            found.append(f"{type(error).__name__}: {error}")
    return found


def main():
    name = {"None": None, "by its name": os.environ.get("TPU_NODE_NAME")}.get(sys.argv[1], sys.argv[1])
    strategy = tf.distribute.TPUStrategy(connect(name))
    replicas, hosts = strategy.num_replicas_in_sync, strategy.extended.num_hosts
    seen["is"] = [isinstance(strategy, tf.distribute.TPUStrategy), replicas, hosts]
    old = tf.distribute.experimental.TPUStrategy(tf.distribute.cluster_resolver.TPUClusterResolver())
    seen["old"] = [isinstance(old, tf.distribute.experimental.TPUStrategy), old.num_replicas_in_sync]
    one = tf.distribute.get_strategy()
    seen["fit"] = {"one device": fitted(one, 1), "steps": fitted(strategy, 1), "executions": fitted(strategy, 3)}
    seen["loop"] = {"one device": looped(one), "replicas": looped(strategy)}
    seen["exchanged"] = exchanged(strategy)
    seen["refused"] = refusals(strategy)
    folder = Path(os.environ["AIP_MODEL_DIR"])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "seen.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    main()
