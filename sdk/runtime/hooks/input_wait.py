"""Measures how long a training waits for its input: the time in the operations that take the next batch.

Keras 3 takes the batch inside its compiled train function. There, two operations of TensorFlow read the clock before and after
it, and a third one adds the difference to a variable on the CPU. Outside of functions, Python's clock is read.
See docs/explanation/decisions/goodput.md.
"""

from __future__ import annotations

import functools
import importlib
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from ..account import Account
from ..patches import Function, Patch, around, plumbing

# The functions of Keras 3 that take a batch.
_TRAINER = "keras.src.backend.tensorflow.trainer"
_OF_KERAS = ("multi_step_on_iterator", "one_step_on_iterator")


class InputWait:
    """Counts the waiting of one process, for its account."""

    def __init__(self, account: Account) -> None:
        self._account = account
        self._thread = threading.main_thread().ident
        self._waited_ns = 0  # outside of functions
        self._handle: Any = None
        self._read: Callable[[], float] = lambda: 0.0
        self._several = False  # while the batches of all devices are taken

    def patches(self) -> list[Patch]:
        why = "the time that steps wait for their input is counted"
        return plumbing("input-wait", why, {"tensorflow": self._watch, _TRAINER: self._watch_trainer})

    def waited_ns(self) -> int:
        """Return for how long this process has waited for input."""
        return self._waited_ns + int(self._read() * 1e9)

    def _watch(self, tf: ModuleType) -> None:
        iterators: Any = importlib.import_module("tensorflow.python.data.ops.iterator_ops")
        several: Any = importlib.import_module("tensorflow.python.data.ops.multi_device_iterator_ops")
        for name in ("_next_internal", "get_next_as_optional"):

            @around(iterators.OwnedIterator, name)
            def take(original: Function, iterator: Any) -> Any:
                if self._several:
                    return original(iterator)
                return self._take(tf, iterator._iterator_resource, functools.partial(original, iterator))

        for name in ("get_next", "get_next_as_optional"):

            @around(several.OwnedMultiDeviceIterator, name)
            def take_all(original: Function, iterator: Any, *args: Any, **options: Any) -> Any:
                # Together: they wait at the same time.
                self._several = True
                try:
                    first = iterator._device_iterators[0]._iterator_resource
                    return self._take(tf, first, functools.partial(original, iterator, *args, **options))
                finally:
                    self._several = False

        self._account.waited_ns = self.waited_ns

    def _watch_trainer(self, trainer: ModuleType) -> None:
        for name in ("make_train_function", "make_test_function", "make_predict_function"):
            with_clock = weakref.WeakSet[Any]()

            @around(trainer.TensorFlowTrainer, name)
            def make(
                original: Function, model: Any, force: bool = False, *, _models: weakref.WeakSet[Any] = with_clock
            ) -> Any:
                # A function made before the request for determinism would read the clock, and fail.
                again = _is_deterministic() and model in _models
                (_models.discard if _is_deterministic() else _models.add)(model)
                return original(model, force=force or again)

    def _take(self, tf: Any, resource: Any, take: Callable[[], Any]) -> Any:
        if not tf.executing_eagerly():
            return self._timed(tf, resource, take)
        if threading.get_ident() != self._thread:
            return take()
        start = time.perf_counter_ns()
        try:
            return take()
        finally:
            self._waited_ns += time.perf_counter_ns() - start

    def _timed(self, tf: Any, resource: Any, take: Callable[[], Any]) -> Any:
        """Take the next batch in a graph, and add the time that this takes when the graph runs."""
        if not _is_given(resource):
            return take()
        graph = tf.compat.v1.get_default_graph()
        unknown = not _is_of_keras(graph) or _is_in_loop(graph) or _is_deterministic()
        handle = None if unknown else self._counter(tf)
        if handle is None:
            self._account.waited_ns = None
            return take()
        with tf.device("CPU:0"):
            before = tf.timestamp()
        with tf.control_dependencies([before]):
            batch = take()
        parts = [part for part in tf.nest.flatten(batch, expand_composites=True) if tf.is_tensor(part)]
        with tf.control_dependencies(parts), tf.device("CPU:0"):
            tf.raw_ops.AssignAddVariableOp(resource=handle, value=tf.timestamp() - before)
        return batch

    def _counter(self, tf: Any) -> Any:
        """Return the variable, None in a graph of TensorFlow 1. Made late: a strategy has to be made before any operation."""
        if not tf.compat.v1.executing_eagerly_outside_functions():
            return None
        if self._handle is None:
            with tf.init_scope(), tf.device("CPU:0"):
                handle = tf.raw_ops.VarHandleOp(
                    dtype=tf.float64, shape=[], container="", shared_name="podlift_input_wait"
                )
                tf.raw_ops.AssignVariableOp(resource=handle, value=tf.constant(0.0, tf.float64))

            context: Any = importlib.import_module("tensorflow.python.eager.context")

            def read() -> float:
                try:
                    # Not init_scope, which stays in a graph of TensorFlow 1.
                    with context.eager_mode(), tf.device("CPU:0"):
                        return float(tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float64))
                except tf.errors.OpError:
                    return 0.0  # the program has reset TensorFlow

            self._handle, self._read = handle, read
        return self._handle


def _outwards(graph: Any) -> Iterator[Any]:
    while graph is not None:
        yield graph
        graph = getattr(graph, "outer_graph", None)


def _is_in_loop(graph: Any) -> bool:
    """Return whether the next batch is taken in a loop inside a function, while the step computes: that is no waiting."""
    return any(getattr(outer, "is_control_flow_graph", False) for outer in _outwards(graph))


def _is_deterministic() -> bool:
    """Return whether TensorFlow refuses to read the clock in a graph."""
    config: Any = importlib.import_module("tensorflow.python.framework.config")
    return bool(config.is_op_determinism_enabled())


def _is_of_keras(graph: Any) -> bool:
    """Return whether a graph belongs to a train function of Keras 3, where the step is a separate function.

    In functions of the program, further operations would change random numbers, which depend on the number of operations, and a
    captured value could not be exported.
    """
    return any(getattr(outer, "name", "") in _OF_KERAS for outer in _outwards(graph))


def _is_given(resource: Any) -> bool:
    """Return False for an iterator that the function itself creates: it is not the input of a step."""
    operation = getattr(resource, "op", None)  # none outside of graphs: the function has captured the iterator
    return operation is None or operation.type == "Placeholder"
