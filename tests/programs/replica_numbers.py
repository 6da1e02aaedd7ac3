"""Programs as other people write them: `right` ones take all replicas into account, `wrong` ones count on one of them.

`interrupted` ones are right, and the first batch of an epoch has its extremes. Prints the end of each case, as
"NUMBERS {...}".
"""

import json
import os
import sys

import keras
import numpy as np
import tensorflow as tf
from keras import ops

strategy = tf.distribute.MultiWorkerMirroredStrategy() if "TF_CONFIG" in os.environ else tf.distribute.get_strategy()
BATCH = 32
x = np.random.default_rng(0).normal(size=(4 * BATCH, 4)).astype("float32")
if sys.argv[1] == "interrupted":
    x = x[np.argsort(-np.abs(x.sum(1)))]
y = (x.sum(1, keepdims=True) > 0).astype("float32")
data = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH, drop_remainder=True)


class Extremes(keras.metrics.Metric):
    """The largest and the smallest prediction, from two numbers on."""

    def __init__(self, name="extremes", starts=(-1e9, 1e9)):
        super().__init__(name=name)
        self.starts = starts
        self.largest = self.add_variable((), keras.initializers.Constant(starts[0]), name="largest")
        self.smallest = self.add_variable((), keras.initializers.Constant(starts[1]), name="smallest")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.largest.assign(ops.maximum(self.largest, ops.max(y_pred)))
        self.smallest.assign(ops.minimum(ops.min(y_pred), self.smallest))

    def result(self):
        return {"largest": ops.convert_to_tensor(self.largest), "smallest": ops.convert_to_tensor(self.smallest)}

    def reset_state(self):
        self.largest.assign(self.starts[0])
        self.smallest.assign(self.starts[1])


class Kept(keras.metrics.Metric):
    """A number that each batch replaces: by its mean prediction, or what `value` makes of the predictions and the number."""

    def __init__(self, name, value=lambda predicted, kept: ops.mean(predicted), aggregation="sum"):
        super().__init__(name=name)
        self.value = value
        self.latest = self.add_variable((), "zeros", aggregation=aggregation, name="latest")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.latest.assign(self.value(y_pred, self.latest))

    def result(self):
        return ops.convert_to_tensor(self.latest)


class Counted(keras.metrics.Metric):
    """The sum of the predictions and the number of steps, by an aggregation."""

    def __init__(self, name, aggregation):
        super().__init__(name=name)
        self.total = self.add_variable((), "zeros", aggregation=aggregation, name="total")
        self.steps = self.add_variable((), "zeros", aggregation="only_first_replica", name="steps")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.total.assign_add(ops.sum(y_pred))
        self.steps.assign_add(1.0)

    def result(self):
        return {"total": ops.convert_to_tensor(self.total), "steps": ops.convert_to_tensor(self.steps)}


class Own(keras.Model):
    """A model with a custom train step and the loss `loss_of(y, prediction)`."""

    def __init__(self, loss_of, of_gradients=lambda gradients: gradients):
        super().__init__()
        self.dense = keras.layers.Dense(1, kernel_regularizer=keras.regularizers.L2(0.1))
        self.loss_of, self.of_gradients = loss_of, of_gradients

    def call(self, inputs):
        return self.dense(inputs)

    def train_step(self, batch):
        inputs, targets = batch
        with tf.GradientTape() as tape:
            loss = self.loss_of(targets, self(inputs, training=True), self)
        gradients = self.of_gradients(tape.gradient(loss, self.trainable_variables))
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"loss": loss}


class OwnLoss(keras.Model):
    """A model that computes its own loss in Keras's train step."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, inputs):
        return self.dense(inputs)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return ops.mean(ops.square(y - y_pred))


def net():
    dense = keras.layers.Dense(1, activation="sigmoid", kernel_initializer=keras.initializers.Ones())
    return keras.Sequential([keras.Input((4,)), dense])


def fitted(model, callbacks=(), **options):
    """Train for two epochs, and return the report of the second one and the size of the weights."""
    with strategy.scope():
        model.compile(keras.optimizers.SGD(0.05), **options)
    history = model.fit(data, epochs=2, verbose=0, callbacks=callbacks).history
    numbers = {name: values[-1] for name, values in history.items() if not name.startswith("loss")}
    return {**numbers, "weights": sum(float(np.abs(w).sum()) for w in model.get_weights())}


def own(loss_of, *of_gradients):
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = Own(loss_of, *of_gradients)
        model.build((None, 4))
    return fitted(model)


def with_metrics(make, **options):
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model, metrics = net(), make()
    return fitted(model, loss="binary_crossentropy", metrics=metrics, **options)


def read_by_the_chief(metric):
    is_chief = "chief" in os.environ.get("PODLIFT_TASK", "chief")
    return keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: metric.result() if is_chief else None)


def loop(make_total, update, result=lambda metric: metric.result()):
    with strategy.scope():
        model = net()
    total = make_total()

    @tf.function
    def evaluate(batch):
        def replica(inputs, targets):
            update(total, targets, model(inputs))

        strategy.run(replica, args=batch)

    for batch in strategy.experimental_distribute_dataset(data):
        evaluate(batch)
    return {"total": float(tf.convert_to_tensor(result(total)))}


def own_loop(loss_of):
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model, optimizer = net(), keras.optimizers.SGD(0.05)
        optimizer.build(model.trainable_variables)

    @tf.function
    def train(batch):
        def my_step(inputs, targets):
            with tf.GradientTape() as tape:
                loss = loss_of(targets, model(inputs, training=True))
            optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)

        strategy.run(my_step, args=batch)

    for batch in strategy.experimental_distribute_dataset(data):
        train(batch)
    return {"weights": sum(float(np.abs(w).sum()) for w in model.get_weights())}


def squares(targets, outputs):
    return tf.reduce_sum(tf.square(targets - outputs), axis=-1)


def replicas():
    return tf.distribute.get_strategy().num_replicas_in_sync


def shared_sum():
    kind = {"synchronization": tf.VariableSynchronization.ON_READ, "aggregation": tf.VariableAggregation.SUM}
    with strategy.scope():
        return tf.Variable(0.0, trainable=False, **kind)


def in_scope(make):
    def made():
        with strategy.scope():
            return make()

    return made


loss_object = keras.losses.MeanSquaredError()
unreduced = keras.losses.MeanSquaredError(reduction="none")
summed = keras.losses.MeanSquaredError(reduction="sum")
steps = tf.Variable(0.0, trainable=False)
rate = tf.Variable(0.05, trainable=False)


def count_steps(total, targets, outputs):
    total.assign_add(1.0)


def add_outputs(total, targets, outputs):
    total.assign_add(tf.reduce_sum(outputs))


def update(metric, targets, outputs):
    metric.update_state(targets, outputs)


def learning_rate(predicted, kept):
    """Return the values that are the same in all tasks."""
    return ops.convert_to_tensor(rate)


outside = [keras.metrics.TruePositives(name="outside"), keras.metrics.AUC(name="outside_auc")]
outside.append(Kept("outside_rate", learning_rate))
outside_read = keras.metrics.TruePositives(name="outside_read")


def of_keras():
    metrics = keras.metrics
    found = [metrics.TruePositives(name="tp"), metrics.AUC(name="auc"), metrics.BinaryIoU(name="iou")]
    return [*found, metrics.PrecisionAtRecall(0.5, name="precision"), metrics.R2Score(name="r2")]


WRONG = {
    "outside_loop": lambda: loop(lambda: keras.metrics.TruePositives(name="outside_loop"), update),
    "variable": lambda: loop(lambda: tf.Variable(0.0, name="outputs"), add_outputs, lambda v: v),
    "overwritten": lambda: with_metrics(lambda: [Kept("overwritten")]),
    "rate": lambda: with_metrics(lambda: [Kept("rate", learning_rate)]),
    "moving": lambda: with_metrics(
        lambda: [Kept("moving", lambda outputs, kept: 0.9 * kept + 0.1 * ops.mean(outputs))]
    ),
    "first": lambda: with_metrics(lambda: [Counted("first", "only_first_replica")]),
    "mean": lambda: own(lambda y, p, model: tf.reduce_mean(squares(y, p))),
    "by_shape": lambda: own(lambda y, p, model: tf.reduce_sum(squares(y, p)) / tf.cast(tf.shape(y)[0], tf.float32)),
    "unreduced": lambda: own(lambda y, p, model: 0.3 * ops.mean(unreduced(y, p))),
    "regularizer": lambda: own(lambda y, p, model: loss_object(y, p) + tf.add_n(model.losses)),
    "clipped": lambda: own(
        lambda y, p, model: tf.reduce_mean(squares(y, p)), lambda gradients: tf.clip_by_global_norm(gradients, 9.0)[0]
    ),
    "compute_loss": lambda: fitted(in_scope(OwnLoss)()),
    "loop": lambda: own_loop(lambda y, p: tf.reduce_mean(squares(y, p))),
}
RIGHT = {
    "outside_fit": lambda: with_metrics(lambda: outside),
    "outside_read": lambda: with_metrics(lambda: [outside_read], callbacks=[read_by_the_chief(outside_read)]),
    "extremes": lambda: with_metrics(lambda: [Extremes()]),
    "extremes_from": lambda: with_metrics(lambda: [Extremes("extremes_from", (0.999, 0.001))]),
    "keras_metrics": lambda: with_metrics(lambda: ["accuracy", *of_keras()]),
    "mean_of_overwritten": lambda: with_metrics(lambda: [Kept("mean", aggregation="mean")]),
    "share_of_overwritten": lambda: with_metrics(
        lambda: [Kept("share", lambda predicted, kept: ops.mean(predicted) / strategy.num_replicas_in_sync)]
    ),
    "counted": lambda: with_metrics(lambda: [Counted("counted", "sum")]),
    "steps_outside": lambda: loop(lambda: steps, count_steps, lambda v: v),
    "shared_sum": lambda: loop(shared_sum, add_outputs, lambda v: v),
    "metric_in_loop": lambda: loop(in_scope(keras.metrics.AUC), update),
    "loss_object": lambda: own(lambda y, p, model: loss_object(y, p)),
    "summed": lambda: own(lambda y, p, model: summed(y, p) / BATCH),
    "average_loss": lambda: own(
        lambda y, p, model: (
            tf.nn.compute_average_loss(squares(y, p), global_batch_size=BATCH)
            + tf.nn.scale_regularization_loss(tf.add_n(model.losses))
        )
    ),
    "average_loss_by_itself": lambda: own(lambda y, p, model: tf.nn.compute_average_loss(squares(y, p))),
    "divided": lambda: own(lambda y, p, model: tf.reduce_mean(squares(y, p)) / replicas()),
    "multiplied": lambda: own(lambda y, p, model: tf.reduce_mean(squares(y, p)) * (1.0 / replicas())),
    "samples": lambda: own(
        lambda y, p, model: tf.nn.compute_average_loss(
            tf.reduce_mean(tf.stack([squares(y, p), squares(y, 2 * p), squares(y, 3 * p)]), axis=0)
        )
    ),
    "divided_gradients": lambda: own(
        lambda y, p, model: tf.reduce_mean(squares(y, p)), lambda gradients: [each / replicas() for each in gradients]
    ),
    "loop": lambda: own_loop(lambda y, p: tf.reduce_sum(squares(y, p)) * (1.0 / BATCH)),
}

cases = {"wrong": WRONG, "right": RIGHT, "interrupted": {"extremes": RIGHT["extremes"]}}[sys.argv[1]]
found = {name: case() for name, case in cases.items()}
print("NUMBERS " + json.dumps(found, default=float))
