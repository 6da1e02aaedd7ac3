"""The order in which Keras 3's `fit` takes arrays, the same after a restart and in every task.

Keras shuffles with `tf.random.shuffle` inside of a pipeline. Where it is in its sequence nobody can read, and every task
of a gang draws another order, so that some examples are taken twice in an epoch and others not at all. Here each order is
made from a seed of the `fit` and the number of the iterator, which can be set.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from . import randomness

_default: list[str] = []


def set_default_seed(seed: str) -> None:
    """Say what orders are made from in a program that sets no seed: something that all tasks of a run share."""
    _default[:] = [seed]


class ShuffleOrder:
    """The orders of one `fit`.

    Attributes:
        used: arrays are shuffled by it.
    """

    def __init__(self) -> None:
        self.used = False
        self.seed = _new_seed()
        with tf.device("CPU:0"), tf.init_scope():
            # No tf.Variable: a strategy would take hold of it.
            self._handle = tf.raw_ops.VarHandleOp(
                dtype=tf.int64, shape=[2], shared_name=f"podlift_order_{id(self)}_{self.seed}"
            )
        self.begin_iterator(0)

    def begin_iterator(self, number: int) -> None:
        """Give the iterator that is read next the order of this number."""
        tf.raw_ops.AssignVariableOp(resource=self._handle, value=tf.constant([self.seed, number], tf.int64))

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """Have pipelines that are made in here shuffle that way."""
        original, thread = tf.random.shuffle, threading.get_ident()

        def shuffle(value: Any, seed: Any = None, name: Any = None) -> Any:
            if seed is not None or threading.get_ident() != thread:
                return original(value, seed, name)
            self.used = True
            pair = tf.raw_ops.ReadVariableOp(resource=self._handle, dtype=tf.int64)
            # The first of a range is 0; with shuffle="batch" it tells the batches apart.
            pair = tf.random.experimental.stateless_fold_in(pair, value[0])
            return tf.random.experimental.stateless_shuffle(value, seed=pair)

        tf.random.shuffle = shuffle
        try:
            yield
        finally:
            tf.random.shuffle = original


def _new_seed() -> int:
    base = randomness.global_seed()
    words = [str(base)] if base is not None else _default or [os.urandom(8).hex()]
    digest = hashlib.sha256("/".join([*words, str(randomness.next_ordinal())]).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1
