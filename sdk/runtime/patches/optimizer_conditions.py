"""Options of Keras 3's optimizers that need a condition: `gradient_accumulation_steps` and `ema_overwrite_frequency`.

Keras enters the branch of a condition on each replica, and the replicas meet in it, which TensorFlow does not support under a
strategy: "`merge_call` called while defining a new graph". Here they meet first, and the condition is outside of them, as Keras
does it for the scale of a loss. docs/explanation/decisions/keras-multi-worker.md.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from . import Function, Patch, around, is_supported_tensorflow, keras_shares, keras_version

_KERAS = ((3, 8), (3, 15))
_APPLY = "_backend_apply_gradients"
_SUMMED = "_podlift_summed"  # of an optimizer: its gradients are added up already


def _applies(trainer: ModuleType) -> bool:
    return _KERAS[0] <= keras_version() <= _KERAS[1] and is_supported_tensorflow(trainer.tf)


def _needed(trainer: ModuleType) -> bool:
    """Return whether Keras uses the code of all backends, which does not support strategies."""
    optimizers = trainer.optimizers_module
    return getattr(optimizers.Optimizer, _APPLY) is getattr(optimizers.base_optimizer.BaseOptimizer, _APPLY)


def _apply(trainer: ModuleType) -> None:
    tf, optimizers = trainer.tf, trainer.optimizers_module
    optimizers.base_optimizer.ops = _Ops(tf, optimizers.base_optimizer.ops)

    @around(optimizers.Optimizer, _APPLY)
    def apply(original: Function, self: Any, grads: list[Any], trainable_variables: list[Any]) -> None:
        if not self.gradient_accumulation_steps or not _meets(tf):
            original(self, grads, trainable_variables)
            return
        # In every step, and not in the branch: clipping is not linear, and needs the sum over replicas and steps.
        present = zip(keras_shares.of_examples(tf, grads), trainable_variables, strict=True)
        summed = super(optimizers.Optimizer, self)._all_reduce_sum_gradients(present)
        setattr(self, _SUMMED, True)
        try:
            original(self, [grad for grad, _ in summed], trainable_variables)
        finally:
            setattr(self, _SUMMED, False)

    @around(optimizers.Optimizer, "_all_reduce_sum_gradients")
    def once(original: Function, self: Any, grads_and_vars: Any) -> Any:
        return list(grads_and_vars) if getattr(self, _SUMMED, False) else original(self, grads_and_vars)

    @around(optimizers.Optimizer, "_overwrite_model_variables_with_average_value")
    def overwrite(original: Function, self: Any, trainable_variables: list[Any]) -> None:
        if _meets(tf):
            tf.distribute.get_replica_context().merge_call(lambda strategy: original(self, trainable_variables))
        else:
            original(self, trainable_variables)


class _Ops:
    """Keras's operations for its optimizers, with a condition in which replicas may meet."""

    def __init__(self, tf: ModuleType, ops: Any) -> None:
        self._tf, self._ops = tf, ops

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ops, name)

    def cond(self, pred: Any, true_fn: Function, false_fn: Function) -> Any:
        if sys._getframe(1).f_code.co_name != _APPLY or not _meets(self._tf):
            return self._ops.cond(pred, true_fn, false_fn)

        def outside(strategy: Any, preds: Any, *functions: Any) -> None:
            def branch(function: Any) -> Function:
                # The functions of a replica hold its gradients.
                return lambda: strategy.extended.call_for_each_replica(_without_share, args=(function,))

            # It is the same on all replicas.
            self._ops.cond(strategy.experimental_local_results(preds)[0], *map(branch, functions))

        return self._tf.distribute.get_replica_context().merge_call(outside, args=(pred, true_fn, false_fn))


def _without_share(function: Function) -> None:
    with keras_shares.during(None):
        function()


def _meets(tf: ModuleType) -> bool:
    """Return whether this is the step of one replica, which must meet the others outside of conditions."""
    replica = tf.distribute.get_replica_context()
    return replica is not None and tf.distribute.has_strategy() and replica.strategy.extended._use_merge_call()


PATCH = Patch(
    name="optimizer-conditions",
    why="gradient_accumulation_steps and ema_overwrite_frequency fail under a strategy: replicas cannot meet in a condition",
    module="keras.src.backend.tensorflow.trainer",
    applies=_applies,
    needed=_needed,
    apply=_apply,
    quiet=True,
)
