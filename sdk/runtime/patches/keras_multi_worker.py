"""Keras 3 `fit`, `evaluate` and `predict` under MultiWorkerMirroredStrategy: they run, and give one worker's numbers.

Keras fails there at the first batch (keras#20585), and would otherwise average replicas as equals, which is wrong once
the global batch does not divide evenly. Here each replica's loss counts by its part of the global batch. Every other
strategy takes Keras's own path. The reasoning, the costs and what stays inexact: docs/decisions/keras-multi-worker.md.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from . import Patch

_KERAS_FIRST, _KERAS_LAST = (3, 8), (3, 15)  # 3.7 and older scale losses elsewhere
_TENSORFLOW_FIRST, _TENSORFLOW_LAST = (2, 16), (2, 21)


@dataclass(frozen=True, kw_only=True)
class _Part:
    """How much of something lies on this replica: of the batch's examples, or of whatever else a loss divides by."""

    tf: ModuleType
    amount: Any  # float64: a count in float32 is not exact beyond 2**24, and rounding would differ per replica
    whole: Any
    replicas: int

    @classmethod
    def measure(cls, tf: ModuleType, amount: Any) -> _Part:
        """Sum over the replicas; a collective, so every task must come here at the same point of the step."""
        context = tf.distribute.get_replica_context()
        amount = tf.stop_gradient(tf.cast(amount, tf.float64))
        return cls(tf=tf, amount=amount, whole=context.all_reduce("SUM", amount), replicas=context.num_replicas_in_sync)

    @classmethod
    def equal(cls, tf: ModuleType) -> _Part:
        """All replicas have the same known amount: nothing to ask the others."""
        replicas = tf.distribute.get_replica_context().num_replicas_in_sync
        return cls(tf=tf, amount=tf.ones([], tf.float64), whole=tf.cast(replicas, tf.float64), replicas=replicas)

    def scale(self, value: Any) -> Any:
        """Turn a mean over this replica into its term of the mean over all; the mean of nothing (NaN) counts as 0."""
        share = self.tf.math.divide_no_nan(self.amount, self.whole)
        return self.tf.math.multiply_no_nan(value, self.tf.cast(share, value.dtype))

    def unscale(self, value: Any) -> Any:
        """Undo `scale`, for a metric that multiplies by the amount and adds up over the replicas."""
        return value * self.tf.cast(self.tf.math.divide_no_nan(self.whole, self.amount), value.dtype)


# Set while a replica's train or test step is traced (or run eagerly): what the loss functions below look at. Unset
# means any other strategy or a custom loop, where Keras's own functions must answer.
_batch: ContextVar[_Part | None] = ContextVar("batch", default=None)
_divisor: ContextVar[_Part | None] = ContextVar("divisor", default=None)
_counts_steps: ContextVar[bool] = ContextVar("counts_steps", default=False)


@contextmanager
def _during[T](variable: ContextVar[T], value: T) -> Iterator[None]:
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)
