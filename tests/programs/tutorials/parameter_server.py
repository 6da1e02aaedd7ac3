"""ParameterServerStrategy within one task: its servers run in this process, as TensorFlow's tutorial has them in a notebook.

Two workers and one server that are threads of this process show that the strategy itself works; nothing is gained by it.
"""

import socket

import spots
import tensorflow as tf


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


spec = tf.train.ClusterSpec(
    {role: [f"localhost:{free_port()}" for _ in range(n)] for role, n in (("worker", 2), ("ps", 1))}
)
# With two cores TensorFlow would take two threads for all servers, and operations that wait for each other would starve.
threads = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=4)
for role in spec.jobs:
    for index in range(spec.num_tasks(role)):
        tf.distribute.Server(spec, job_name=role, task_index=index, protocol="grpc", config=threads)
resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(spec, rpc_layer="grpc")
strategy = tf.distribute.ParameterServerStrategy(resolver)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
with strategy.scope():
    weights = tf.Variable(tf.zeros((spots.FEATURES, spots.CLASSES)))
batches = coordinator.create_per_worker_dataset(lambda: spots.dataset(64, repeat=True))
iterator = iter(batches)


@tf.function
def step(iterator):
    vectors, kinds = next(iterator)
    with tf.GradientTape() as tape:
        logits = tf.matmul(vectors, weights)
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=kinds, logits=logits))
    weights.assign_sub(0.5 * tape.gradient(loss, weights))
    return loss


found = [coordinator.schedule(step, args=(iterator,)) for _ in range(16)]
coordinator.join()
print(f"loss {found[0].fetch():.4f} -> {found[-1].fetch():.4f}")
if found[-1].fetch() >= found[0].fetch():
    raise SystemExit("did not learn")
