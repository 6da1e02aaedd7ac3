"""Several steps in one call of a compiled function (`steps_per_execution`), with any number of replicas.

This works around two bugs. The first is TensorFlow's, and affects every loop inside a `tf.function` that calls another one
which averages over replicas; Keras's `fit` is such a loop if `steps_per_execution` is above 1. The second is Keras's: an epoch
of `steps_per_epoch` steps trains on more steps if that is not a multiple of `steps_per_execution`. The reasoning:
docs/explanation/decisions/keras-multi-worker.md.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from ...logs import logger
from . import Function, Patch, around, is_supported_tensorflow, keras_version

_log = logger("runtime")

_KERAS = ((3, 11), (3, 15))  # before 3.11 an epoch yields one number per execution, not the first and the last step
_WHY = (
    "a collective in a function that a loop calls is not numbered, so steps_per_execution > 1 fails with two or more "
    'replicas: "You must feed a value for placeholder tensor"'
)


def patches() -> list[Patch]:
    """Return the cures of both. The first one logs a line only when a loop needs it, which is rare."""
    return [
        Patch(
            name="steps-per-execution",
            why=_WHY,
            module="tensorflow",
            applies=is_supported_tensorflow,
            needed=_loses_late_values,
            apply=lambda tf: _keep_late_values(),
            quiet=True,
        ),
        Patch(
            name="last-execution",
            why="an epoch of steps_per_epoch steps ends with them, although steps_per_execution does not divide them",
            module="keras.src.backend.tensorflow.trainer",
            applies=lambda trainer: _KERAS[0] <= keras_version() <= _KERAS[1],
            needed=_oversteps,
            apply=_end_in_time,
            quiet=True,
        ),
    ]


# --- TensorFlow: values that are known only when a function is called ---------------------------------------------


def _loses_late_values(tf: ModuleType) -> bool:
    """Ask the graph of a branch for such a value: it promises one, but branches never get any."""
    graphs: Any = importlib.import_module("tensorflow.python.ops.control_flow_v2_func_graphs")
    with _func_graph().FuncGraph("podlift_probe").as_default():
        branch = graphs.CondBranchFuncGraph("podlift_probe_branch")
        with branch.as_default():
            value = branch.capture_call_time_value(lambda: 0, tf.TensorSpec([], tf.int32))
    return value.graph is branch


def _keep_late_values() -> None:
    """Capture such values in the function around a loop or a branch, which is called."""
    kind, logged = _func_graph().FuncGraph, False

    @around(kind, "capture_call_time_value")
    def capture(original: Function, graph: Any, *args: Any, **options: Any) -> Any:
        nonlocal logged
        function = graph
        while getattr(function, "is_control_flow_graph", False):
            function = function.outer_graph
        if function is graph or not isinstance(function, kind):
            return original(graph, *args, **options)
        if not logged:
            logged = True
            _log.info(f"patch steps-per-execution: {_WHY}")
        with function.as_default():
            return original(function, *args, **options)


def _func_graph() -> Any:
    return importlib.import_module("tensorflow.python.framework.func_graph")


# --- Keras: the last execution of an epoch ------------------------------------------------------------------------


class _Endless:
    """Endless data, for the probe."""

    num_batches = None

    def on_epoch_begin(self) -> None:
        pass

    def on_epoch_end(self) -> None:
        pass


def _oversteps(trainer: ModuleType) -> bool:
    """Count one step in executions of two."""
    epochs = object.__new__(trainer.EpochIterator)
    epochs.data_adapter, epochs.steps_per_epoch, epochs.steps_per_execution = _Endless(), 1, 2
    epochs._num_batches = epochs._current_iterator = None
    epochs._steps_seen = 0
    epochs._get_iterator = lambda: ()
    return bool([end for _, end, _ in epochs._enumerate_iterator()] != [0])


def _end_in_time(trainer: ModuleType) -> None:
    @around(trainer.EpochIterator, "_enumerate_iterator")
    def count(original: Function, epochs: Any) -> Iterator[tuple[int, int, Any]]:
        for begin, end, data in original(epochs):
            steps = epochs.steps_per_epoch
            beyond = 0 if not steps else max(0, end + 1 - steps)
            yield begin, end - beyond, data
            # Keras compares it with the number of batches.
            epochs._steps_seen -= beyond

    @around(trainer.TFEpochIterator, "__next__")
    def execution(original: Function, epochs: Any) -> tuple[int, int, Any]:
        begin, end, data = original(epochs)
        steps = end + 1 - begin
        return begin, end, data if steps == epochs.steps_per_execution else _Batches(trainer.tf, data, steps)


class _Batches:
    """The next `count` batches. Keras runs an iterator that is not TensorFlow's step by step."""

    def __init__(self, tf: ModuleType, data: Iterator[Any], count: int) -> None:
        self._tf, self._data, self._left = tf, data, count
        self._any = False

    def __iter__(self) -> _Batches:
        return self

    def __next__(self) -> Any:
        if not self._left:
            raise StopIteration
        self._left -= 1
        try:
            batch = next(self._data)
        except StopIteration:
            if self._any:
                raise
            # Without a step Keras would find no outputs.
            raise self._tf.errors.OutOfRangeError(None, None, "There is no more data.") from None
        self._any = True
        return batch
