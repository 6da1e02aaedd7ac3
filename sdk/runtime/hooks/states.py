"""The changes that a replica's step makes, above all to a metric's variables, and whether they count for all replicas.

TensorFlow adds up the replicas' values of a metric's variable when it is read outside of a step. That is right for a sum, and
wrong for a maximum or a last value; and a variable that was made outside of `strategy.scope()` knows one task's examples only.
"""

from __future__ import annotations

import importlib
import sys
from contextvars import ContextVar
from typing import Any

from ...logs import logger
from ..patches import Function, around, keras_shares
from . import graphs

_log = logger("runtime")
INSIDE = (
    "Next: make the model, its optimizer and its metrics, and call compile(), inside `with strategy.scope():`; fit() and the "
    "training loop may stay outside."
)
_EXTREME = "_podlift_extreme"  # of a variable: "max" or "min"
_ASSIGNED = "_podlift_assigned"  # on a variable: the last value that all replicas were assigned together
_OUTSIDE = "_podlift_outside"  # of a variable that was made outside the scope
_together: ContextVar[bool] = ContextVar("_together", default=False)
_EXTREMES = {"max": "largest", "min": "smallest"}
_FRAMES = 40


def finding(variable: Any, value: Any, *, replaces: bool, replicas: int, here: int) -> str:
    """Return the mistake in a change that one of the replicas makes, "" for none.

    Args:
        variable: the variable of this replica.
        value: the assigned or added value.
        replaces: False if the value is added.
        replicas: their number, of which `here` are of this task.
    """
    import tensorflow as tf

    if isinstance(value, tf.Variable) and not tf.executing_eagerly():
        value = value.read_value()
    if graphs.is_traced(value) and graphs.keeps(value, variable.handle):
        return ""  # the change by an empty batch is undone
    container = getattr(variable.handle, "_distributed_container", lambda: None)()
    updated = _metric()
    metric = "" if updated is None else str(updated.name)
    if container is None:
        if here == 1 and updated is not None and keras_shares.in_step() and _is_added(variable, value):
            _share(updated, replicas)
            return ""
        return _of_one_task(variable, value, metric, replicas, here)
    if type(container).__name__ != "SyncOnReadVariable" or not graphs.is_traced(value):
        return ""
    name = container.name.partition(":")[0]
    what = f"The metric {metric!r}" if metric else f"The variable {name!r}"
    whose = f"its variable {name!r}" if metric else "its value"
    aggregation = container.aggregation.name
    if aggregation == "ONLY_FIRST_REPLICA" and graphs.is_of_data(value):
        return (
            f"{what} counts the examples of the first of {replicas} replicas only, since {whose} is made with "
            'aggregation="only_first_replica". Next: aggregation="sum".'
        )
    if aggregation == "SUM" and replaces and not _is_constant(value):
        return _of_sum(container, variable, value, replicas, what, whose)
    return ""


def _of_one_task(variable: Any, value: Any, metric: str, replicas: int, here: int) -> str:
    if here > 1:
        return (
            f"The variable {variable.name!r} was made outside strategy.scope(): each of the {here} replicas of a task changes "
            f"the same one, and its value is wrong. {INSIDE}"
        )
    import tensorflow as tf

    # A number of steps is the same in all tasks. An eager value does not show its inputs.
    if not (graphs.is_of_data(value) if graphs.is_traced(value) else metric and tf.executing_eagerly()):
        return ""
    what = f"The metric {metric!r}" if metric else f"The variable {variable.name!r}"
    return (
        f"{what} was made outside strategy.scope(): each of the {replicas} tasks has its own one, which counts the examples "
        f"of that task only. {INSIDE}"
    )


def _of_sum(container: Any, variable: Any, value: Any, replicas: int, what: str, whose: str) -> str:
    """Judge a variable that adds up the values of its replicas when it is read."""
    import tensorflow as tf

    update = graphs.update_of(value, variable.handle)
    if update in _EXTREMES:
        if _EXTREME not in vars(container):
            setattr(container, _EXTREME, update)
            with tf.init_scope():
                if _has_parts(container, replicas):
                    _assign_each(container, vars(container)[_ASSIGNED])
            _log.info(
                f"{what} keeps the {_EXTREMES[update]} value: of {replicas} replicas too, instead of the sum of theirs"
            )
        return ""
    if update != "other" or graphs.knows_replicas(value, replicas):
        return ""
    return (
        f"{what} overwrites {whose} in each step instead of adding to it, and the values of all {replicas} replicas are added "
        f'up when it is read: it is {replicas} times too large. Next: add_variable(..., aggregation="mean"), which reads their '
        "mean, or keep a sum and a count."
    )


def _has_parts(container: Any, replicas: int) -> bool:
    """Return whether each replica still has its part of the common assignment before the first step.

    A restored state was assigned to each replica alone, and is the replica's own extreme.
    """
    import tensorflow as tf

    if _ASSIGNED not in vars(container):
        return False
    part = tf.cast(vars(container)[_ASSIGNED] / replicas, container.dtype)
    return all(bool(tf.reduce_all(component.read_value() == part)) for component in container._values)


def _is_added(variable: Any, value: Any) -> bool:
    """Return whether a metric's variable adds up something of this replica's examples."""
    return graphs.is_traced(value) and graphs.is_of_data(value) and graphs.update_of(value, variable.handle) == "sum"


def _share(metric: Any, replicas: int) -> None:
    """Make a metric one of the strategy's, as if it had been made inside the scope.

    In a step of Keras only: there all tasks read their metrics together. A task that reads its metric elsewhere, in a callback
    or in a loop of the program's own, does not wait for the others, and reads its own value as before.
    """
    values: Any = importlib.import_module("tensorflow.python.distribute.values")
    library: Any = importlib.import_module("tensorflow.python.distribute.distribute_lib")
    for variable in metric.variables:
        alone = variable._value
        if not isinstance(alone, values.DistributedValues):
            variable._value = values.SyncOnReadVariable(library.get_strategy(), (alone,), alone.aggregation)
            setattr(variable._value, _OUTSIDE, True)
    _log.info(
        f"the metric {metric.name!r} was made outside strategy.scope(): counts the examples of all {replicas} tasks"
    )


def _metric() -> Any:
    """Return the metric that is being updated, None if none is."""
    frame = sys._getframe(1)
    for _ in range(_FRAMES):
        if frame.f_code.co_name in ("update_state", "tf__update_state") and "self" in frame.f_locals:
            return frame.f_locals["self"] if hasattr(frame.f_locals["self"], "result") else None
        if frame.f_back is None:
            break
        frame = frame.f_back
    return None


def _is_constant(value: Any) -> bool:
    import tensorflow as tf

    return tf.get_static_value(value) is not None


def together(original: Function, *args: Any, **options: Any) -> Any:
    """Call a function that all tasks call together; metrics that it reads count all tasks."""
    token = _together.set(True)
    try:
        return original(*args, **options)
    finally:
        _together.reset(token)


def _assign_each(variable: Any, value: Any, read_value: bool = False) -> Any:
    """Assign all of a value to each replica; TensorFlow assigns its part of a sum."""
    util: Any = importlib.import_module("tensorflow.python.distribute.values_util")
    return util.assign_on_each_device(variable, util.assign_on_device, value, read_value)


def read_extremes() -> None:
    """Read the largest of all replicas' values where a variable keeps the largest one, and so on."""
    import tensorflow as tf

    values: Any = importlib.import_module("tensorflow.python.distribute.values")
    util: Any = importlib.import_module("tensorflow.python.distribute.values_util")

    @around(util, "on_read_assign_cross_replica")
    def assign(original: Function, variable: Any, value: Any, read_value: bool = True) -> Any:
        if _EXTREME in vars(variable):
            return _assign_each(variable, tf.cast(value, variable.dtype), read_value)
        if tf.executing_eagerly() and variable.aggregation == tf.VariableAggregation.SUM:
            setattr(variable, _ASSIGNED, tf.cast(value, variable.dtype))
        return original(variable, value, read_value=read_value)

    @around(values.SyncOnReadVariable, "_get_cross_replica")
    def read(original: Function, variable: Any) -> Any:
        if _OUTSIDE in vars(variable) and not _together.get():
            return variable._values[0].read_value()
        extreme = vars(variable).get(_EXTREME)  # getattr would read it
        if not extreme:
            return original(variable)
        return _over_replicas(values, variable, tf.reduce_max if extreme == "max" else tf.reduce_min)


def _over_replicas(values: Any, variable: Any, reduce: Function) -> Any:
    """Reduce the values of all replicas: their sum, with a row for each. Gathering would trace a function each time."""
    import tensorflow as tf

    strategy = variable._distribute_strategy
    before = strategy.extended._get_replica_id_in_sync_group(0)
    rows = []
    for index, component in enumerate(variable._values, before):
        after = strategy.num_replicas_in_sync - index - 1
        rows.append(tf.pad(component.read_value()[tf.newaxis], [[index, after], *[[0, 0]] * component.shape.rank]))
    return reduce(strategy.reduce("SUM", values.PerReplica(rows), axis=None), axis=0)
