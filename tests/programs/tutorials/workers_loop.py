"""A training loop of one's own: distributed batches, one step for each replica, losses added up over all of them."""

import spots
import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
GLOBAL_BATCH = 32 * strategy.num_replicas_in_sync
batches = strategy.experimental_distribute_dataset(spots.dataset(GLOBAL_BATCH))
with strategy.scope():
    model = spots.classifier()
    optimizer = tf.keras.optimizers.SGD(0.1)
    optimizer.build(model.trainable_variables)
    losses = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")


def step(vectors, kinds):
    with tf.GradientTape() as tape:
        mean = tf.nn.compute_average_loss(losses(kinds, model(vectors, training=True)), global_batch_size=GLOBAL_BATCH)
    gradients = tape.gradient(mean, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    return mean


@tf.function
def everywhere(vectors, kinds):
    return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(step, args=(vectors, kinds)), axis=None)


first = last = None
for _ in range(3):
    for vectors, kinds in batches:
        last = float(everywhere(vectors, kinds))
        first = last if first is None else first
print(f"loss {first:.4f} -> {last:.4f}")
if last >= first:
    raise SystemExit("did not learn")
