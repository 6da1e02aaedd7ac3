"""The strategies of the programs that compare them, by name: "one" has none, "mirrored-2" has two replicas on GPUs.

The programs are ordinary ones for GPUs and TPUs: they know nothing of stand-ins. "cluster" is the strategy of several tasks.
"""

import tensorflow as tf


def gpus(count):
    every = tf.config.list_physical_devices("GPU")
    return None if count == len(every) else [f"/gpu:{index}" for index in range(count)]


def tpu(count):
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="local")
    tf.config.experimental_connect_to_cluster(resolver)
    tf.tpu.experimental.initialize_tpu_system(resolver)
    return tf.distribute.TPUStrategy(resolver)


def parameter_server(count):
    import sdk

    return sdk.context().strategy


MAKERS = {
    "one": lambda count: tf.distribute.get_strategy(),
    "one_device": lambda count: tf.distribute.OneDeviceStrategy("/gpu:0"),
    "mirrored": lambda count: tf.distribute.MirroredStrategy(gpus(count)),
    "cluster": lambda count: tf.distribute.MultiWorkerMirroredStrategy(),
    "multi_worker": lambda count: tf.distribute.MultiWorkerMirroredStrategy(),
    "central_storage": lambda count: tf.distribute.experimental.CentralStorageStrategy(gpus(count)),
    "parameter_server": parameter_server,
    "tpu": tpu,
}


def made(name):
    """Return the strategy of a name. Several in one process are for tests: programs have one."""
    kind, _, count = name.partition("-")
    for strategy in (tf.distribute.MirroredStrategy, tf.distribute.MultiWorkerMirroredStrategy):
        # Groups of several sizes need different keys in one process; TensorFlow's own tests do this.
        strategy._collective_key_base += 100_000
    return MAKERS[kind](int(count or 1))
