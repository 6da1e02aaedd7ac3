"""Each replica's share of a global batch, and the functions of Keras that need it: losses, optimizers, BatchNorm.

Keras gives every replica the weight 1/N. That equals the result of one worker only while all replicas have the same number
of examples (or of valid steps under a mask, or the same sum of weights). `keras_multi_worker` sets a `ReplicaStep` while a
replica runs a train or test step under a synchronous strategy. Without one, Keras's own functions run.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, TypeVar

from . import Function, around

_MEANS = ("sum_over_batch_size", "mean", "mean_with_sample_weight")


def is_tpu(strategy: Any) -> bool:
    """Return whether it is a TPUStrategy, by any of its spellings."""
    return any(kind.__name__.startswith("TPUStrategy") for kind in type(strategy).__mro__)


def is_replicated(strategy: Any) -> bool:
    """Return whether it is one of these with several replicas, by any of its spellings."""
    kinds = {"MirroredStrategy", "CollectiveAllReduceStrategy", "CentralStorageStrategy"}
    return strategy.num_replicas_in_sync > 1 and bool(kinds & {kind.__name__ for kind in type(strategy).__mro__})


def is_shared(variable: Any) -> bool:
    """Return whether all replicas have this one variable, as under CentralStorageStrategy."""
    return type(variable._value).__name__ == "AggregatingVariable"


def _counts(tf: ModuleType) -> Any:
    """Return the type to count in: float32 is exact up to 2**24 only, but TPUs sum nothing wider."""
    return tf.float32 if is_tpu(tf.distribute.get_strategy()) else tf.float64


@dataclass(frozen=True, kw_only=True)
class ReplicaShare:
    """This replica's amount of something, and the sum over all replicas: examples, or another divisor of a loss."""

    tf: ModuleType
    amount: Any  # both in `_counts`
    whole: Any

    @classmethod
    def measure(cls, tf: ModuleType, amount: Any, whole: Any = None) -> ReplicaShare:
        """Sum over all replicas unless `whole` is known. A collective: every task has to call it at the same point."""
        amount = tf.stop_gradient(tf.cast(amount, _counts(tf)))
        if whole is not None:
            return cls(tf=tf, amount=amount, whole=tf.cast(whole, amount.dtype))
        return cls(tf=tf, amount=amount, whole=tf.distribute.get_replica_context().all_reduce("SUM", amount))

    @classmethod
    def equal(cls, tf: ModuleType) -> ReplicaShare:
        """The share of one replica if all are equal, which needs no collective."""
        replicas = tf.distribute.get_replica_context().num_replicas_in_sync
        return cls(tf=tf, amount=tf.ones([], _counts(tf)), whole=tf.constant(replicas, _counts(tf)))

    def scale(self, value: Any) -> Any:
        """Turn a mean over this replica into its term of the mean over all; a mean over nothing, NaN, becomes 0."""
        share = self.tf.math.divide_no_nan(self.amount, self.whole)
        return self.tf.math.multiply_no_nan(value, self.tf.cast(share, value.dtype))

    def unscale(self, value: Any) -> Any:
        """Turn such a term into the value that a metric has to add, times `amount`, on every replica to get the mean."""
        return value * self.tf.cast(self.tf.math.divide_no_nan(self.whole, self.amount), value.dtype)


@dataclass(frozen=True, kw_only=True)
class ReplicaStep:
    """The state of the functions below while a replica runs one train or test step."""

    batch: ReplicaShare
    present: ReplicaShare  # 1, or 0 for a replica without examples, of the number of replicas that have any
    divisor: ReplicaShare  # `batch`, except inside a loss that divides by something else
    metric: ReplicaShare  # `batch`, except for metrics that count steps instead of examples
    counted: tuple[Any, ...] = ()  # variables of metrics that count examples: a made-up one must not count

    @classmethod
    def measure(cls, tf: ModuleType, size: Any, sums: Any = None) -> ReplicaStep:
        """Return the step of a replica with this number of examples; `sums`, if known, come from `counted_batches`."""
        both = ReplicaShare.measure(tf, tf.stack([size, tf.minimum(size, 1)]), None if sums is None else sums[1:])
        parts = (ReplicaShare(tf=tf, amount=both.amount[i], whole=both.whole[i]) for i in range(2))
        return cls(batch=(batch := next(parts)), present=next(parts), divisor=batch, metric=batch)

    @classmethod
    def equal(cls, tf: ModuleType) -> ReplicaStep:
        part = ReplicaShare.equal(tf)
        return cls(batch=part, present=part, divisor=part, metric=part)


_Step = TypeVar("_Step", ReplicaStep, None)
_step: ContextVar[ReplicaStep | None] = ContextVar("_step", default=None)


def in_step() -> bool:
    """Return whether a replica runs a step of Keras under a synchronous strategy."""
    return _step.get() is not None


def counted(variable: Any, increment: Any) -> Any:
    """Return the amount that this replica adds to a shared variable: nothing to a metric if it has no examples."""
    step = _step.get()
    if step is None or all(variable is not other for other in step.counted):
        return increment
    return step.batch.tf.math.multiply_no_nan(increment, step.batch.tf.cast(step.present.amount, increment.dtype))


@contextmanager
def during(step: _Step) -> Iterator[_Step]:
    token = _step.set(step)
    try:
        yield step
    finally:
        _step.reset(token)


# --- Losses: weighted by the replica's share of the loss's divisor ------------------------------------------------


def cure_losses(trainer: ModuleType) -> None:
    tf, losses = trainer.tf, trainer.loss_module
    _cure_total(trainer)

    @around(losses, "scale_loss_for_distribution")
    def scale(original: Function, value: Any) -> Any:
        step = _step.get()
        return original(value) if step is None else step.divisor.scale(value)

    @around(losses, "unscale_loss_for_distribution")
    def unscale(original: Function, value: Any) -> Any:
        step = _step.get()
        return original(value) if step is None else step.metric.unscale(value)

    @around(losses, "reduce_weighted_values")
    def weigh(
        original: Function,
        values: Any,
        sample_weight: Any = None,
        mask: Any = None,
        reduction: str | None = "sum_over_batch_size",
        dtype: Any = None,
    ) -> Any:
        step = _step.get()
        if step is None or reduction not in _MEANS:
            return original(values, sample_weight, mask, reduction, dtype)
        values = losses.ops.convert_to_tensor(values, dtype=dtype)
        divisor = _divisor(losses, sample_weight, mask, reduction, values.dtype)
        if divisor is not None:
            there = step.present.amount * tf.cast(divisor, _counts(tf))  # 0 for a made-up example
            step = replace(step, divisor=ReplicaShare.measure(tf, there))
        with during(step):
            loss = original(values, sample_weight, mask, reduction, dtype)
        # Keras does not scale a loss that is a scalar already, although it is a mean over this replica.
        return step.divisor.scale(loss) if values.shape.rank == 0 else loss


def _cure_total(trainer: ModuleType) -> None:
    @around(trainer.base_trainer.CompileLoss, "call")
    def total(original: Function, self: Any, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        step = _step.get()
        # The metric of each output's loss weights a step by its size if that is static, and by 1 otherwise.
        if step is None or trainer.tree.flatten(y_pred)[0].shape[0] is not None:
            return original(self, y_true, y_pred, sample_weight)
        with during(replace(step, metric=ReplicaShare.equal(trainer.tf))):
            return original(self, y_true, y_pred, sample_weight)


def _divisor(losses: ModuleType, sample_weight: Any, mask: Any, reduction: str, dtype: Any) -> Any:
    """Return the divisor of this loss on this replica; None if it is the number of examples."""
    if mask is not None:
        mask = losses.ops.cast(mask, dtype)
    if reduction != "mean_with_sample_weight":
        return None if mask is None else losses.ops.sum(mask)
    if sample_weight is not None:
        sample_weight = losses.ops.convert_to_tensor(sample_weight, dtype=dtype)
    weights = losses.apply_mask(sample_weight, mask, dtype=dtype, reduction=reduction)
    return None if weights is None else losses.ops.sum(weights)


# --- Optimizers and layers that use one replica where they need all of them ---------------------------------------


def cure_optimizers(trainer: ModuleType) -> None:
    tf, optimizers = trainer.tf, trainer.optimizers_module
    clip_gradients = optimizers.Optimizer._clip_gradients

    @around(optimizers.Optimizer, "_clip_gradients")
    def clip_later(original: Function, self: Any, grads: list[Any]) -> Any:
        return original(self, grads) if _step.get() is None else grads

    @around(optimizers.Optimizer, "_all_reduce_sum_gradients")
    def add_up(original: Function, self: Any, grads_and_vars: Iterable[tuple[Any, Any]]) -> Any:
        step = _step.get()
        if step is None:
            return original(self, grads_and_vars)
        summed = original(self, [(_or_nothing(tf, step, grad), variable) for grad, variable in grads_and_vars])
        # Clipping is not linear: the sum of clipped parts is not the clipped sum.
        clipped = clip_gradients(self, [grad for grad, _ in summed])
        return list(zip(clipped, [variable for _, variable in summed], strict=True))

    @around(optimizers.LossScaleOptimizer, "apply")
    def agree(original: Function, self: Any, grads: list[Any], trainable_variables: Any = None) -> None:
        step = _step.get()
        if step is not None:
            # Keras checks for infinities on each task, and then enters a branch with collectives: a single task in it
            # would wait for ever. So a NaN on one task becomes NaN on all.
            grads = of_examples(tf, grads)
            infinite = ReplicaShare.measure(tf, tf.logical_not(self.check_finite(grads))).whole
            poison = tf.where(infinite > 0, float("nan"), 0.0)
            grads = [_on_values(tf, grad, lambda v: v + tf.cast(poison, v.dtype)) for grad in grads]
        original(self, grads, trainable_variables)


def of_examples(tf: ModuleType, grads: Iterable[Any]) -> list[Any]:
    """Return the gradients of this replica, zeros if its examples are made up."""
    step = _step.get()
    return list(grads) if step is None else [_or_nothing(tf, step, grad) for grad in grads]


def _or_nothing(tf: ModuleType, step: ReplicaStep, grad: Any) -> Any:
    """Return the gradient, or zeros if its examples are made up, where it might be NaN."""
    if step.present is step.batch:
        return grad
    return _on_values(tf, grad, lambda v: tf.math.multiply_no_nan(v, tf.cast(step.present.amount, v.dtype)))


def _on_values(tf: ModuleType, grad: Any, change: Function) -> Any:
    if isinstance(grad, tf.IndexedSlices):
        return tf.IndexedSlices(change(grad.values), grad.indices, grad.dense_shape)
    return None if grad is None else change(grad)


@functools.cache
def cure_batch_normalization() -> None:
    """Exclude made-up examples from the moving averages."""
    from keras import layers, ops

    @around(layers.BatchNormalization, "_moments")
    def moments(original: Function, self: Any, inputs: Any, mask: Any) -> Any:
        step = _step.get()
        if step is None or step.present is step.batch:
            return original(self, inputs, mask)
        present = ops.cast(step.present.amount, "int32")
        if self.synchronized and mask is None:
            return original(self, inputs[: ops.shape(inputs)[0] * present], mask)
        moving, measured = (self.moving_mean, self.moving_variance), original(self, inputs, mask)
        return tuple(
            ops.where(present > 0, new, ops.cast(old, new.dtype)) for new, old in zip(measured, moving, strict=True)
        )


def average_moving_statistics(trainer: ModuleType, model: Any) -> None:
    """Average BatchNormalization's moving averages over all replicas; Keras keeps separate ones per task.

    They are linear in the moments, so averaging them once equals averaging the moments in every step.
    """
    from keras import layers

    norms = [layer for layer in model._flatten_layers() if isinstance(layer, layers.BatchNormalization)]
    variables = [v for norm in norms if norm.trainable for v in norm.non_trainable_variables]

    def average() -> None:
        context = trainer.tf.distribute.get_replica_context()
        means = context.all_reduce("MEAN", [trainer.tf.convert_to_tensor(v.value) for v in variables])
        for variable, mean in zip(variables, means, strict=True):
            variable.assign(mean)

    if variables:
        # TPUStrategy runs tf.functions only.
        strategy = model.distribute_strategy
        strategy.run(trainer.tf.function(average, autograph=False) if is_tpu(strategy) else average)
