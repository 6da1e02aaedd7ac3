"""Captures a program's training steps before they run: the graph, the line that runs it, and its inputs.

Every step goes through `strategy.run`, also the steps of `fit`. On the stand-in for a TPU it is traced as one function,
`tpu_step`; in a program without a TPUStrategy, `strategy.run` itself is patched. A traced function that contains such a step
is not run: its caller gets zeros, so that the program continues with its next epoch and its other steps without computing
anything. All variables exist at this point. After a few such calls the program is ended.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.data.ops import iterator_ops, multi_device_iterator_ops
from tensorflow.python.distribute import distribute_lib, distribute_utils, tpu_strategy
from tensorflow.python.eager.polymorphic_function import concrete_function
from tensorflow.python.framework import func_graph as func_graphs
from tensorflow.python.util import tf_stack

from ..runtime.patches import Function, around
from ..runtime.tpu import replicas
from .observations import Observations, TracedStep

_MOST_STEPS = 16


class ProgramEndsError(BaseException):
    """Unwinds the program once the inspection is complete."""


def watch(
    observations: Observations, locate: Callable[[Any], tuple[str, int]], may_end: Callable[[Observations], bool]
) -> None:
    """Record the steps of this process from now on; `may_end`, called instead of a function with a step, can end it."""
    _watch_data(observations)
    _watch_tpu(observations, locate)
    _watch_others(observations, locate)
    _skip_steps(observations, may_end)


def pretend(count: int) -> None:
    """Let one replica represent `count` identical ones, each with its share of the batch."""
    # No collectives: the compiler for CPUs does not support them.
    replicas.add_up = lambda value: tf.identity(value)
    # TensorFlow traces loops differently for a compiler.
    around(replicas.Replicated, "IsXLAContext")(lambda original, self: True)
    tpu_strategy.TPUExtended._num_replicas_in_sync = property(lambda self: count)

    @around(replicas, "replicate")
    def replicate(original: Function, computation: Any, inputs: Any, devices: Any) -> Any:
        return original(computation, inputs[: len(devices)], devices) * count

    @around(distribute_utils, "select_replica")
    def select(original: Function, index: int, structured: Any) -> Any:
        return original(0, structured)


def _add(observations: Observations, step: TracedStep) -> None:
    observations.traced_s = observations.traced_s or time.monotonic()
    if len(observations.steps) < _MOST_STEPS:
        observations.steps.append(step)


def _watch_tpu(observations: Observations, locate: Callable[[Any], tuple[str, int]]) -> None:
    @around(func_graphs, "func_graph_from_py_func")
    def traced(original: Function, name: str, function: Any, args: Any, *more: Any, **options: Any) -> Any:
        if name != "tpu_step":
            return original(name, function, args, *more, **options)
        path, line = locate(_here())
        graph = original(name, function, args, *more, **options)
        again = _same_lines()

        def build(specs: list[Any]) -> Any:
            with again():
                return original("preflight_step", function, specs, {}, signature=specs)

        _add(observations, TracedStep(path, line, build, list(args), graph, on_tpu=True, trains=_trains(graph)))
        return graph


def _watch_others(observations: Observations, locate: Callable[[Any], tuple[str, int]]) -> None:
    @around(distribute_lib.StrategyBase, "run")
    def run(original: Function, self: Any, fn: Any, args: Any = (), kwargs: Any = None, options: Any = None) -> Any:
        before = len(observations.steps)
        result = original(self, fn, args, kwargs, options)
        if len(observations.steps) > before or tf.executing_eagerly():
            return result
        local = [_first(self, value) for value in tf.nest.flatten((args, kwargs or {}), expand_composites=False)]
        tensors = [index for index, value in enumerate(local) if isinstance(value, tf.Tensor)]

        def build(specs: list[Any]) -> Any:
            def step(*arguments: Any) -> Any:
                values = list(local)
                for index, value in zip(tensors, arguments, strict=True):
                    values[index] = value
                again, more = tf.nest.pack_sequence_as((args, kwargs or {}), values)
                return fn(*again, **more)

            with again(), self.scope():
                return func_graphs.func_graph_from_py_func("preflight_step", step, specs, {}, signature=specs)

        again = _same_lines()
        specs = [tf.TensorSpec(local[index].shape, local[index].dtype) for index in tensors]
        path, line = locate(_here())
        graph = tf.compat.v1.get_default_graph()
        _add(observations, TracedStep(path, line, build, specs, graph, on_tpu=False, trains=_trains(graph)))
        return result


def _first(strategy: Any, value: Any) -> Any:
    local = strategy.experimental_local_results(value)
    return local[0] if local else value


def _here() -> Any:
    """Return the current traceback with the program's own lines, although TensorFlow has rewritten its functions."""
    with tf.Graph().as_default():
        return tf.no_op().traceback


def _same_lines() -> Callable[[], contextlib.AbstractContextManager[None]]:
    """Return a context in which a later trace of the same function maps to the program's lines as it does now."""
    saved = list(tf_stack._source_mapper_stacks[threading.get_ident()])

    @contextlib.contextmanager
    def same() -> Iterator[None]:
        stacks, thread = tf_stack._source_mapper_stacks, threading.get_ident()
        before = stacks[thread]
        stacks[thread] = list(saved)
        try:
            yield
        finally:
            stacks[thread] = before

    return same


def _trains(graph: Any) -> bool:
    return any(op.type.startswith(("Assign", "ResourceApply", "ResourceScatter")) for op in within(graph))


def within(graph: Any) -> Iterator[Any]:
    """Yield the operations of a graph and of the functions that it calls."""
    pending, visited = [graph], {id(graph)}
    while pending:
        current = pending.pop()
        for op in current.get_operations():
            yield op
            for inner in functions_of(op, current):
                if id(inner) not in visited:
                    visited.add(id(inner))
                    pending.append(inner)


def functions_of(op: Any, graph: Any) -> list[Any]:
    """Return the graphs of the functions that an operation calls."""
    graphs = [getattr(graph._get_function(name), "graph", None) for name in _called(op)]
    return [inner for inner in graphs if inner is not None]


def _called(op: Any) -> list[str]:
    names = []
    for value in op.node_def.attr.values():
        if value.HasField("func"):
            names.append(value.func.name)
        names += [function.name for function in value.list.func]
    return names


def _watch_data(observations: Observations) -> None:
    def iterated(original: Function, self: Any, dataset: Any = None, *args: Any, **options: Any) -> None:
        if dataset is not None and all(other is not dataset for other in observations.datasets):
            observations.datasets.append(dataset)
        original(self, dataset, *args, **options)

    for kind in (iterator_ops.OwnedIterator, multi_device_iterator_ops.OwnedMultiDeviceIterator):
        around(kind, "__init__")(iterated)


def _skip_steps(observations: Observations, may_end: Callable[[Observations], bool]) -> None:
    @around(concrete_function.ConcreteFunction, "_call_flat")
    def call(original: Function, self: Any, *args: Any, **options: Any) -> Any:
        if not tf.executing_eagerly() or not any(
            step.trains and _holds(self.graph, step.graph) for step in observations.steps
        ):
            return original(self, *args, **options)
        observations.calls += 1
        results = [_zeros(tensor) for tensor in self.graph.outputs]
        if may_end(observations) or any(value is None for value in results):
            raise ProgramEndsError
        return self.function_type.pack_output(results)


def _holds(graph: Any, inner: Any) -> bool:
    while inner is not None and inner is not graph:
        inner = getattr(inner, "outer_graph", None)
    return inner is graph


def _zeros(tensor: Any) -> Any:
    """Return the stand-in for a result that was not computed; None if there is none."""
    if tensor.dtype in (tf.resource, tf.variant):
        return None
    sides = [] if tensor.shape.rank is None else [1 if side is None else side for side in tensor.shape]
    return tf.fill(sides, "") if tensor.dtype == tf.string else tf.zeros(sides, tensor.dtype)
