"""Keras 3 `fit`, `evaluate` and `predict` under MultiWorkerMirroredStrategy: they run, and give one worker's numbers.

Keras fails there at the first batch (keras#20585), and would otherwise average replicas as equals, which is wrong once
the global batch does not divide evenly. Here each replica's loss counts by its part of the global batch. Every other
strategy takes Keras's own path. The reasoning, the costs and what stays inexact: docs/decisions/keras-multi-worker.md.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

from . import Patch

_KERAS = ((3, 8), (3, 15))  # before 3.8 a loss was not scaled by the number of replicas, so there is nothing to correct
_TENSORFLOW = ((2, 16), (2, 21))
_TWO_STEP_NUMBERS = (3, 11)  # since then an epoch yields the first and the last step of an execution
_MEANS = ("sum_over_batch_size", "mean", "mean_with_sample_weight")

Function = Callable[..., Any]


@dataclass(frozen=True, kw_only=True)
class _Part:
    """How much of something lies on this replica: of the batch's examples, or of what else a loss divides by."""

    tf: ModuleType
    amount: Any  # both float64: float32 would lose counts above 2**24 and round the quotient
    whole: Any

    @classmethod
    def measure(cls, tf: ModuleType, amount: Any) -> _Part:
        """Add up over all replicas: a collective, so every task has to come here at the same point of its step."""
        amount = tf.stop_gradient(tf.cast(amount, tf.float64))
        return cls(tf=tf, amount=amount, whole=tf.distribute.get_replica_context().all_reduce("SUM", amount))

    @classmethod
    def equal(cls, tf: ModuleType) -> _Part:
        """The part of one replica among equals, for which nobody needs to be asked."""
        replicas = tf.distribute.get_replica_context().num_replicas_in_sync
        return cls(tf=tf, amount=tf.ones([], tf.float64), whole=tf.constant(replicas, tf.float64))

    def scale(self, value: Any) -> Any:
        """Turn a mean over this replica into its term of the mean over all; a mean over nothing, NaN, becomes 0."""
        share = self.tf.math.divide_no_nan(self.amount, self.whole)
        return self.tf.math.multiply_no_nan(value, self.tf.cast(share, value.dtype))

    def unscale(self, value: Any) -> Any:
        """Turn such a term into what a metric has to add, times `amount`, on every replica to arrive at the mean."""
        return value * self.tf.cast(self.tf.math.divide_no_nan(self.whole, self.amount), value.dtype)


@dataclass(frozen=True, kw_only=True)
class _Step:
    """What the loss functions below need to know while a replica runs one train or test step."""

    batch: _Part
    divisor: _Part  # `batch`, except inside a loss that divides by something else
    metric: _Part  # `batch`, except for metrics that count steps instead of examples


# Unset under every other strategy and in custom loops, where Keras's own functions have to answer.
_step: ContextVar[_Step | None] = ContextVar("_step", default=None)


@contextmanager
def _during(step: _Step) -> Iterator[None]:
    token = _step.set(step)
    try:
        yield
    finally:
        _step.reset(token)


def _wrap(owner: Any, name: str, wrapper: Callable[[Function], Function]) -> None:
    original = getattr(owner, name)
    setattr(owner, name, functools.wraps(original)(wrapper(original)))


# --- The step: what runs, what it is told, what it returns --------------------------------------------------------


def _cure_trainer(trainer: ModuleType) -> None:
    in_multi_worker_mode = trainer._collective_all_reduce_multi_worker

    def build(original: Function) -> Function:
        def _maybe_symbolic_build(self: Any, iterator: Any = None, data_batch: Any = None) -> None:
            if iterator is not None and in_multi_worker_mode(self.distribute_strategy):
                # A batch cannot be averaged where its pieces differ in size; any piece shows the types.
                iterator = _first_pieces(trainer, iterator, self.distribute_strategy)
            original(self, iterator=iterator, data_batch=data_batch)

        return _maybe_symbolic_build

    def reduce(original: Function) -> Function:
        def reduce_per_replica(values: Any, strategy: Any, reduction: str) -> Any:
            if reduction == "auto" and in_multi_worker_mode(strategy):
                reduction = "first"  # `_mean_over_replicas` has made them equal
            return original(values, strategy, reduction)

        return reduce_per_replica

    def make(original: Function) -> Function:
        def _make_function(self: Any, step_function: Function) -> Function:
            if not in_multi_worker_mode(self.distribute_strategy):
                return original(self, step_function)  # type: ignore[no-any-return]
            _cure_batch_normalization()
            # Two functions, as a traced step cannot be told later whether it has to measure.
            measuring = original(self, _informed(trainer, step_function, equal=False))
            equal = original(self, _informed(trainer, step_function, equal=True))
            return lambda iterator: (equal if _has_equal_pieces(trainer.tf, iterator) else measuring)(iterator)

        return _make_function

    _wrap(trainer.TensorFlowTrainer, "_maybe_symbolic_build", build)
    _wrap(trainer.TensorFlowTrainer, "_make_function", make)
    _wrap(trainer, "reduce_per_replica", reduce)


def _first_pieces(trainer: ModuleType, epoch: Iterable[Any], strategy: Any) -> Iterator[tuple[Any, ...]]:
    def first(value: Any) -> Any:
        return strategy.experimental_local_results(value)[0]

    for *steps, batches in epoch:  # one number or two: see _TWO_STEP_NUMBERS
        yield *steps, (trainer.tree.map_structure(first, batch) for batch in batches)


def _has_equal_pieces(tf: ModuleType, iterator: Any) -> bool:
    """Say whether every replica gets the same number of examples in every step. All tasks give the same answer."""
    if not isinstance(iterator, tf.distribute.DistributedIterator):
        return False  # `train_on_batch`: each task passes what it likes
    specs = tf.nest.flatten(iterator.element_spec, expand_composites=True)
    return all(spec.shape.rank and spec.shape[0] is not None for spec in specs)


def _informed(trainer: ModuleType, step_function: Function, *, equal: bool) -> Function:
    tf = trainer.tf

    def step(data: Any) -> Any:
        first = next(leaf for leaf in trainer.tree.flatten(data) if leaf is not None)
        part = _Part.equal(tf) if equal else _Part.measure(tf, tf.shape(first)[0])
        with _during(_Step(batch=part, divisor=part, metric=part)):
            return _mean_over_replicas(trainer, step_function(data))

    return step


def _mean_over_replicas(trainer: ModuleType, outputs: Any) -> Any:
    """Average what the step returns, packed into one collective per type instead of one per metric."""
    tf = trainer.tf
    leaves = [tf.convert_to_tensor(v) if isinstance(v, float) else v for v in trainer.tree.flatten(outputs)]
    numbers = {i: v for i, v in enumerate(leaves) if isinstance(v, tf.Tensor) and v.dtype.is_floating}
    context = tf.distribute.get_replica_context()
    for dtype in dict.fromkeys(v.dtype for v in numbers.values()):
        same = [i for i, v in numbers.items() if v.dtype == dtype]
        for i, mean in zip(same, context.all_reduce("MEAN", [numbers[i] for i in same]), strict=True):
            leaves[i] = mean
    return trainer.tree.pack_sequence_as(outputs, leaves)


# --- Losses: each replica's counts by its part of what the loss divides by ----------------------------------------


def _cure_losses(trainer: ModuleType) -> None:
    tf, losses = trainer.tf, trainer.loss_module

    def scale(original: Function) -> Function:
        def scale_loss_for_distribution(value: Any) -> Any:
            step = _step.get()
            return original(value) if step is None else step.divisor.scale(value)

        return scale_loss_for_distribution

    def unscale(original: Function) -> Function:
        def unscale_loss_for_distribution(value: Any) -> Any:
            step = _step.get()
            return original(value) if step is None else step.metric.unscale(value)

        return unscale_loss_for_distribution

    def weigh(original: Function) -> Function:
        def reduce_weighted_values(
            values: Any,
            sample_weight: Any = None,
            mask: Any = None,
            reduction: str | None = "sum_over_batch_size",
            dtype: Any = None,
        ) -> Any:
            step = _step.get()
            if step is None or reduction not in _MEANS:
                return original(values, sample_weight, mask, reduction, dtype)
            divisor = _divisor(losses, sample_weight, mask, reduction, values.dtype)
            if divisor is not None:
                step = replace(step, divisor=_Part.measure(tf, divisor))
            with _during(step):
                loss = original(values, sample_weight, mask, reduction, dtype)
            # Keras takes a loss that is a number already as it is, although it is a mean of this replica's examples.
            return step.divisor.scale(loss) if values.shape.rank == 0 else loss

        return reduce_weighted_values

    def total(original: Function) -> Function:
        def call(self: Any, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
            step = _step.get()
            if step is None:
                return original(self, y_true, y_pred, sample_weight)
            # The metric of each output's loss weighs a step by its size only if that is static, and by 1 otherwise.
            if trainer.tree.flatten(y_pred)[0].shape[0] is None:
                step = replace(step, metric=_Part.equal(tf))
            with _during(step):
                return original(self, y_true, y_pred, sample_weight)

        return call

    _wrap(losses, "scale_loss_for_distribution", scale)
    _wrap(losses, "unscale_loss_for_distribution", unscale)
    _wrap(losses, "reduce_weighted_values", weigh)
    _wrap(trainer.base_trainer.CompileLoss, "call", total)


def _divisor(losses: ModuleType, sample_weight: Any, mask: Any, reduction: str, dtype: Any) -> Any:
    """Return what this loss divides its sum by on this replica, or None where that is the number of examples."""
    if mask is not None:
        mask = losses.ops.cast(mask, dtype)
    if reduction != "mean_with_sample_weight":
        return None if mask is None else losses.ops.sum(mask)
    if sample_weight is not None:
        sample_weight = losses.ops.convert_to_tensor(sample_weight, dtype=dtype)
    weights = losses.apply_mask(sample_weight, mask, dtype=dtype, reduction=reduction)
    return None if weights is None else losses.ops.sum(weights)


# --- Optimizers and layers that look at one replica where they have to look at all --------------------------------


def _cure_optimizers(trainer: ModuleType) -> None:
    tf, optimizers = trainer.tf, trainer.optimizers_module
    clip_gradients = optimizers.Optimizer._clip_gradients

    def clip(original: Function) -> Function:
        def _clip_gradients(self: Any, grads: list[Any]) -> Any:
            return original(self, grads) if _step.get() is None else grads

        return _clip_gradients

    def add_up(original: Function) -> Function:
        def _all_reduce_sum_gradients(self: Any, grads_and_vars: Iterable[tuple[Any, Any]]) -> Any:
            summed = original(self, grads_and_vars)
            if _step.get() is None:
                return summed
            # Clipping is not linear: the sum of clipped parts is not the clipped sum.
            clipped = clip_gradients(self, [grad for grad, _ in summed])
            return list(zip(clipped, [variable for _, variable in summed], strict=True))

        return _all_reduce_sum_gradients

    def finite(original: Function) -> Function:
        def check_finite(self: Any, grads: list[Any]) -> Any:
            answer = original(self, grads)
            if _step.get() is None:
                return answer
            # Keras goes on to a branch that has collectives: one task alone in it would wait for ever.
            return tf.equal(_Part.measure(tf, tf.logical_not(answer)).whole, 0)

        return check_finite

    _wrap(optimizers.Optimizer, "_clip_gradients", clip)
    _wrap(optimizers.Optimizer, "_all_reduce_sum_gradients", add_up)
    _wrap(optimizers.LossScaleOptimizer, "check_finite", finite)


@functools.cache
def _cure_batch_normalization() -> None:
    """Keep the NaN moments of a replica without examples out of the moving averages of all."""
    from keras import layers, ops

    def moments(original: Function) -> Function:
        def _moments(self: Any, inputs: Any, mask: Any) -> Any:
            mean, variance = original(self, inputs, mask)
            step = _step.get()
            if step is None or self.synchronized:
                return mean, variance
            empty = ops.equal(step.batch.amount, 0)
            return (
                ops.where(empty, ops.cast(self.moving_mean, mean.dtype), mean),
                ops.where(empty, ops.cast(self.moving_variance, variance.dtype), variance),
            )

        return _moments

    _wrap(layers.BatchNormalization, "_moments", moments)


# --- Does it apply, is it needed ----------------------------------------------------------------------------------


def _version(text: str) -> tuple[int, int]:
    major, minor = text.split(".")[:2]
    return int(major), int(minor)


def _keras_version() -> tuple[int, int]:
    from keras.src.version import __version__

    return _version(__version__)


def _applies(trainer: ModuleType) -> bool:
    tensorflow = _version(trainer.tf.__version__)
    return _KERAS[0] <= _keras_version() <= _KERAS[1] and _TENSORFLOW[0] <= tensorflow <= _TENSORFLOW[1]


def _needed(trainer: ModuleType) -> bool:
    """Call Keras's two functions with a strategy that only writes down how it is asked to reduce."""
    asked: list[Any] = []

    class Extended:
        def _in_multi_worker_mode(self) -> bool:
            return True

    class Recorder(trainer.tf.distribute.MultiWorkerMirroredStrategy):  # type: ignore[misc,name-defined]
        extended = Extended()
        scope = nullcontext

        def __init__(self) -> None:
            pass

        def reduce(self, reduce_op: str, value: Any, axis: int | None) -> Any:
            asked.append((value, axis))
            return value

        def experimental_local_results(self, value: Any) -> tuple[Any, ...]:
            return (value,)

    class Model:
        distribute_strategy = _distribute_strategy = Recorder()

        def _symbolic_build(self, data_batch: Any) -> None:
            pass

    trainer.reduce_per_replica(1.0, Recorder(), "auto")
    averages_along_an_axis = any(axis is not None for _, axis in asked)
    asked.clear()
    batch = (trainer.tf.distribute.DistributedValues(),) * 2
    steps = (0, 0) if _keras_version() >= _TWO_STEP_NUMBERS else (0,)
    trainer.TensorFlowTrainer._maybe_symbolic_build(Model(), iterator=[(*steps, iter([batch]))])
    return averages_along_an_axis or any(isinstance(value, tuple) for value, _ in asked)


def _apply(trainer: ModuleType) -> None:
    _cure_losses(trainer)
    _cure_optimizers(trainer)
    _cure_trainer(trainer)


PATCH = Patch(
    name="keras-multi-worker",
    why="Keras 3 `fit` fails under MultiWorkerMirroredStrategy (keras#20585, tensorflow#72388, ray#47464, keras#21069)",
    module="keras.src.backend.tensorflow.trainer",
    applies=_applies,
    needed=_needed,
    apply=_apply,
)
