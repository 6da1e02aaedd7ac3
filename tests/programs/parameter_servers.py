"""A custom loop with parameter servers, as in TensorFlow's guide, that ends when a worker has come back after its death.

Each step tells which process has taken it, so that the chief sees a third process of its two workers take steps.
"""

import keras
import tensorflow as tf

import sdk

STEPS, MOST = 10, 20_000  # of a round, and of all until it gives up
ctx = sdk.context()
print("begins", ctx.task, flush=True)
# Workers and servers serve here until the chief ends.
strategy = ctx.strategy
with strategy.scope():
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    optimizer = keras.optimizers.SGD(0.05)
    optimizer.build(model.trainable_variables)
    taken = tf.Variable(0, dtype=tf.int64)


@tf.function
def step(iterator):
    def replica(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x) - tf.reduce_sum(x, axis=1, keepdims=True)) ** 2)
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        taken.assign_add(1)
        return loss, tf.io.read_file("/proc/self/stat")

    return strategy.run(replica, args=(next(iterator),))


def data():
    return tf.data.Dataset.from_tensor_slices(tf.random.stateless_normal([64, 4], [1, 2])).repeat().batch(16)


def process(stat):
    """Return the number of a process and the time of its start."""
    return stat.split()[0], stat.rpartition(b")")[2].split()[19]


coordinator, iterator = ctx.coordinator, ctx.per_worker_data(data)
processes, losses = set(), []
while len(processes) < 3 and len(losses) < MOST:
    steps = [coordinator.schedule(step, args=(iterator,)) for _ in range(STEPS)]
    coordinator.join()
    for loss, stat in (each.fetch() for each in steps):
        losses.append(float(loss))
        processes.add(process(stat))
    ctx.report({"loss": losses[-1]}, step=len(losses))
# A step that was lost on its way back is taken twice.
print(f"scheduled {len(losses)}, taken {int(taken.numpy())}, by {len(processes)} processes")
ctx.report(
    {"first": losses[0], "loss": losses[-1], "missing": max(len(losses) - int(taken.numpy()), 0)}, step=len(losses)
)
