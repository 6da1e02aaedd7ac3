"""One collective before each step of `fit` on finite data, instead of two.

TensorFlow adds up how many replicas have a batch, to learn whether the data have ended, and `keras_multi_worker` adds up their
examples. Both numbers are known at the same time.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import ModuleType
from typing import Any

from . import Function, around

# Where the sums of the batch that is being taken go; None unless a step requests them.
_sums: ContextVar[list[Any] | None] = ContextVar("_sums", default=None)
_asking: ContextVar[bool] = ContextVar("_asking", default=False)


def can_count(tf: ModuleType, iterator: Any) -> bool:
    """Return whether batches of this iterator come with the sums of their sizes. All tasks agree on the answer."""
    if not isinstance(iterator, tf.distribute.DistributedIterator):
        return False  # `train_on_batch`
    extended = iterator._strategy.extended
    return (
        bool(getattr(iterator, "_enable_get_next_as_optional", False))
        and bool(getattr(extended, "_in_multi_worker_mode", bool)())
        and len(extended.worker_devices) == 1
        and all(isinstance(spec, tf.TensorSpec) and spec.shape.rank for spec in _specs(tf, iterator))
    )


def _specs(tf: ModuleType, iterator: Any) -> Iterator[Any]:
    for spec in tf.nest.flatten(iterator.element_spec):
        yield from getattr(spec, "_value_specs", (spec,))  # the specs of each replica


@contextmanager
def counting() -> Iterator[None]:
    """In this context `get_next` returns (batch, sums): the replicas with a batch, all examples, replicas with examples."""
    token = _asking.set(True)
    try:
        yield
    finally:
        _asking.reset(token)


def install(trainer: ModuleType) -> None:
    tf: Any = trainer.tf
    library: Any = importlib.import_module("tensorflow.python.distribute.input_lib")

    @around(library.DistributedIteratorBase, "get_next")
    def get_next(original: Function, iterator: Any, *args: Any, **options: Any) -> Any:
        if not _asking.get():
            return original(iterator, *args, **options)
        sums: list[Any] = []
        token = _sums.set(sums)
        try:
            batch = original(iterator, *args, **options)
        finally:
            _sums.reset(token)
        return batch, sums[0]

    @around(library, "_calculate_replicas_with_values")
    def add_up(original: Function, strategy: Any, input_workers: Any, optionals: Any) -> Any:
        sums = _sums.get()
        if sums is None:
            return original(strategy, input_workers, optionals)
        ((optional,),) = optionals  # of one replica: see `can_count`
        has_batch = optional.has_value()

        def examples() -> Any:
            return tf.shape(trainer.tree.flatten(optional.get_value())[0], tf.int64)[0]

        size = tf.cond(has_batch, examples, lambda: tf.constant(0, tf.int64))
        own = tf.stack([tf.cast(has_batch, tf.int64), size, tf.minimum(size, 1)])
        sums.append(strategy.reduce("SUM", own, axis=None))
        return sums[0][0]
