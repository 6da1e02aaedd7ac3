"""The order in which tf_keras's `fit` takes the examples of arrays: alike in all tasks, and again in a repeated epoch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from . import keras_input


class ArrayOrder:
    """The shuffle orders of one `fit`, one for each epoch."""

    def __init__(self) -> None:
        self._seed = keras_input.new_seed()
        with tf.device("CPU:0"), tf.init_scope():
            # Not a tf.Variable, which a strategy would distribute.
            self._handle = tf.raw_ops.VarHandleOp(
                dtype=tf.int64, shape=[2], shared_name=f"podlift_array_order_{id(self)}_{self._seed}"
            )
        self.begin_epoch(0)

    def begin_epoch(self, number: int) -> None:
        """Take the order of this epoch next; those that follow need no call."""
        value = tf.constant([self._seed, number], tf.int64)
        tf.raw_ops.AssignVariableOp(resource=self._handle, value=value)

    def shuffle(self, value: Any) -> Any:
        """Return the value in the order of the next epoch."""
        pair = tf.raw_ops.ReadVariableOp(resource=self._handle, dtype=tf.int64)
        tf.raw_ops.AssignAddVariableOp(resource=self._handle, value=tf.constant([0, 1], tf.int64))
        return tf.random.experimental.stateless_shuffle(value, seed=pair)


@contextmanager
def in_force() -> Iterator[ArrayOrder]:
    """Pipelines created inside this context shuffle in the order that it yields."""
    order, original = ArrayOrder(), tf.random.shuffle
    tf.random.shuffle = lambda value, seed=None, name=None: (
        order.shuffle(value) if seed is None else original(value, seed, name)
    )
    try:
        yield order
    finally:
        tf.random.shuffle = original
