"""Keras 3 under CentralStorageStrategy with several replicas: its metrics, BatchNormalization and dropout.

The strategy keeps one variable for all replicas. Keras adds to a metric by assigning "the variable plus this"; TensorFlow adds
up the assignments of the replicas, so the old value counts once for each replica. Variables without an aggregation, such as
moving averages and the state of random numbers, cannot be assigned at all. docs/explanation/decisions/keras-multi-worker.md.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from . import Function, Patch, around, is_supported_tensorflow, keras_version
from .keras_shares import counted, is_shared

_KERAS = ((3, 8), (3, 15))


def _applies(core: ModuleType) -> bool:
    return _KERAS[0] <= keras_version() <= _KERAS[1] and is_supported_tensorflow(core.tf)


def _needed(core: ModuleType) -> bool:
    """Add 1 to a variable that only records the assigned value."""
    assigned: list[Any] = []

    class Recorder(core.Variable):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            pass

        def __add__(self, other: Any) -> Any:
            return ("the old value and", other)

        def assign(self, value: Any) -> None:
            assigned.append(value)

    core.Variable.assign_add(object.__new__(Recorder), 1)
    return assigned == [("the old value and", 1)]


def _apply(core: ModuleType) -> None:
    tf: Any = core.tf
    aggregations = tf.VariableAggregation

    @around(core.Variable, "_direct_assign")
    def assign(original: Function, variable: Any, value: Any) -> None:
        shared = variable._value
        by_tensorflow = not is_shared(variable) or tf.distribute.in_cross_replica_context()
        if by_tensorflow or shared.aggregation not in (aggregations.SUM, aggregations.NONE):
            original(variable, value)
            return
        value = tf.convert_to_tensor(tf.cast(value, shared.dtype))
        merge = tf.distribute.get_replica_context().merge_call
        if shared.aggregation == aggregations.SUM:
            merge(_add_up, args=(tf, shared, value, counted(variable, value - shared.read_value())))
        else:
            merge(_average, args=(tf, shared, value))


def _add_up(strategy: Any, tf: Any, shared: Any, values: Any, increments: Any) -> None:
    if all(_is_zero(tf, value) for value in strategy.experimental_local_results(values)):
        _update(strategy, shared, "assign", tf.zeros(shared.shape, shared.dtype))  # a metric that is reset
    else:
        _update(strategy, shared, "assign_add", strategy.reduce("SUM", increments, axis=None))


def _average(strategy: Any, tf: Any, shared: Any, values: Any) -> None:
    """Moving averages are linear in the moments; the state of random numbers is the same on all replicas."""
    same = not shared.dtype.is_floating
    value = strategy.experimental_local_results(values)[0] if same else strategy.reduce("MEAN", values, axis=None)
    _update(strategy, shared, "assign", value)


def _update(strategy: Any, shared: Any, method: str, value: Any) -> None:
    strategy.extended.update(shared, lambda variable, own_value: getattr(variable, method)(own_value), args=(value,))


def _is_zero(tf: Any, value: Any) -> bool:
    static = tf.get_static_value(value)
    return static is not None and not static.any()


PATCH = Patch(
    name="central-storage",
    why="Keras 3 adds up metrics wrongly under CentralStorageStrategy with several replicas",
    module="keras.src.backend.tensorflow.core",
    applies=_applies,
    needed=_needed,
    apply=_apply,
    quiet=True,
)
