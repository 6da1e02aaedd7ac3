"""All tasks of a gang finish restoring with `BackupAndRestore` together, and only with the same state.

It is a collective: install it in every task of a gang, the chief included, or in none.
"""

from __future__ import annotations

import functools
import importlib
from types import ModuleType
from typing import Any

from . import Function, Patch, around, is_supported_keras

_CALLBACK_MODULES = {"keras": "keras.src.callbacks.backup_and_restore", "tf_keras": "tf_keras.src.callbacks"}


def patches() -> list[Patch]:
    """Return the cure for one task.

    If the backup belongs to a finished training, the chief deletes it at once, and a task that reads it later would start
    from the beginning without the chief. A task on another machine that cannot see the chief's disk would do the same, and
    average gradients of different weights with it.
    """
    return [
        Patch(
            name=f"restore-together ({package})",
            why="a task must not start from another epoch than the chief (keras#20585)",
            module=package,
            applies=is_supported_keras,
            apply=functools.partial(_apply, where),
        )
        for package, where in _CALLBACK_MODULES.items()
    ]


def _apply(where: str, module: ModuleType) -> None:
    @around(importlib.import_module(where).BackupAndRestore, "on_train_begin")
    def begin(original: Function, callback: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(callback, *args, **kwargs)
        strategy = callback.model.distribute_strategy
        if strategy.num_replicas_in_sync > len(strategy.extended.worker_devices):
            _compare(_gathered(strategy, _state(callback)), str(callback.backup_dir))
        return result


def _state(callback: Any) -> int:
    """Return the epoch at which this task continues: tf_keras keeps it in a variable, Keras 3 on the model."""
    training_state = getattr(callback, "_training_state", None)
    if training_state is not None:
        return int(training_state._ckpt_saved_epoch.numpy()) + 1
    return int(getattr(callback.model, "_initial_epoch", None) or 0)


def _gathered(strategy: Any, value: int) -> list[int]:
    """Return the value of every replica, by a sum of one-hot vectors."""
    import tensorflow as tf

    replicas = strategy.num_replicas_in_sync

    @tf.function  # type: ignore[untyped-decorator]
    def gather() -> Any:
        def share() -> Any:
            context = tf.distribute.get_replica_context()
            mine = value * tf.one_hot(context.replica_id_in_sync_group, replicas, dtype=tf.int64)
            return context.all_reduce(tf.distribute.ReduceOp.SUM, mine)

        return strategy.run(share)

    return [int(epoch) for epoch in strategy.experimental_local_results(gather())[0].numpy()]


def _compare(epochs: list[int], backup_dir: str) -> None:
    if len(set(epochs)) > 1:
        raise RuntimeError(
            f"The tasks of this gang restored different epochs. Received: {epochs} (the chief's first) from "
            f"BackupAndRestore({backup_dir!r}). Expected: one folder that every task can read, such as a bucket."
        )
