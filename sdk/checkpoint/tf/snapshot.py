"""Finds variables and reads their values without copying them.

Reading a variable shares its buffer, and TensorFlow does not update a shared buffer in place but writes a new one. A snapshot
therefore costs microseconds per variable, and later training pays for the first change of each. The exception are variables
updated at single rows (embeddings under a sparse optimizer), which TensorFlow copies when they are read.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from ...errors import InputError
from ..contents import Array

_NO_NUMBERS = {tf.string: "strings", tf.variant: "a variant", tf.resource: "a resource"}


class FirstReplica(NamedTuple):
    """A variable on the first replica."""

    path: str
    handles: tuple[Any, ...]  # several for one that is divided among parameter servers
    dtype: Any
    shape: tuple[int, ...]


class Variables(dict[str, Any]):
    """Variables by path.

    `per_replica` variables may differ between replicas, see `loading`; no strategy has distributed the `alone` ones.
    """

    def __init__(self, items: Iterable[tuple[str, Any]], per_replica: Iterable[str]) -> None:
        super().__init__(items)
        self.per_replica = frozenset(per_replica)
        # Now: the first step may distribute a metric's.
        distributed = tf.distribute.DistributedValues
        self.alone = frozenset(
            path for path, variable in self.items() if not isinstance(value_of(variable), distributed)
        )

    @functools.cached_property
    def first(self) -> list[FirstReplica]:
        """Each variable as it is on the first replica."""
        local = ((path, components(variable)[0]) for path, variable in self.items())
        return [FirstReplica(path, _handles(c), c.dtype, tuple(c.shape.as_list())) for path, c in local]


def variables_of(**objects: Any) -> Variables:
    """Return every variable of the objects: `variables_of(model=model, optimizer=optimizer)`.

    A name is Keras's `path`, TensorFlow's own name, or the attributes that lead to the variable in a `tf.Module`. If two
    objects share a name, all names of both get their keyword as a prefix (`generator/adam/iteration`). Within an object the
    second variable of a name is `name#2`, in the object's order. Objects are models (with their optimizer and metrics),
    optimizers, metrics, layers, `tf.Module`s, generators, variables, and lists and dictionaries of them.
    """
    visited: set[int] = set()
    problems: list[str] = []
    by_keyword: dict[str, list[_Member]] = {}
    for keyword, value in objects.items():
        try:
            members = [member for member in _members(value, keyword) if not _was_seen(member[1], visited)]
        except InputError as error:
            problems += error.problems
            continue
        problems += [problem for name, v, _ in members for problem in _problems(name, v)]
        by_keyword[keyword] = _numbered(members)
    if problems:
        raise InputError(problems)
    named = _unique(by_keyword)
    return Variables(((name, v) for name, v, _ in named), (name for name, _, per_replica in named if per_replica))


def take(variables: Variables) -> tuple[Array, ...]:
    """Return the current values; later changes do not affect them. Only the first replica is read, see `loading`."""
    return tuple(
        Array(variable.path, variable.dtype.name, variable.shape, data=functools.partial(bytes_of, _read(variable)))
        for variable in variables.first
    )


def _read(variable: FirstReplica) -> Any:
    # `value()` costs three times as much, which matters with thousands of variables.
    read = [tf.raw_ops.ReadVariableOp(resource=handle, dtype=variable.dtype) for handle in variable.handles]
    return read[0] if len(read) == 1 else tf.concat(read, axis=0)


def size_of(arrays: Iterable[Array]) -> int:
    """Return the total size of the values in bytes."""
    return sum(math.prod(array.shape) * int(tf.as_dtype(array.dtype).size) for array in arrays)


def components(variable: Any) -> tuple[Any, ...]:
    """Return the variable of each local replica; a variable that is not distributed is its only component."""
    value = value_of(variable)
    if isinstance(value, tf.distribute.DistributedValues):
        return tuple(value.distribute_strategy.experimental_local_results(value))
    return (value,)


def bytes_of(tensor: Any) -> memoryview:
    """Return the bytes of a tensor in host memory without copying them; they keep the tensor alive."""
    flat = np.asarray(tf.reshape(tensor, [-1]))  # one axis: a scalar bfloat16 would not become an array
    return memoryview(np.ascontiguousarray(flat).view(np.uint8))


def first_non_finite(arrays: Iterable[Array]) -> str | None:
    """Return the path of the first array with NaN or infinity; None if there is none."""
    return next((array.path for array in arrays if not _is_finite(array)), None)


def finite_weights(variables: Variables) -> frozenset[str]:
    """Return the paths of the trainable variables of this task that hold neither NaN nor infinity."""
    weights = {path for path, variable in variables.items() if getattr(value_of(variable), "trainable", False)}
    # Variables of parameter servers would have to be fetched.
    weights -= {
        replica.path for replica in variables.first if any("/job:ps/" in handle.device for handle in replica.handles)
    }
    return frozenset(array.path for array in take(variables) if array.path in weights and _is_finite(array))


def _is_finite(array: Array) -> bool:
    dtype = tf.as_dtype(array.dtype)
    if not (dtype.is_floating or dtype.is_complex):
        return True
    values = np.frombuffer(array.data(), dtype.as_numpy_dtype)
    with np.errstate(all="ignore"):
        # NaN and infinity propagate to the dot product, which takes a tenth of the time and no memory.
        if values.dtype in (np.float32, np.float64) and np.isfinite(np.dot(values, values)):
            return True
        return bool(np.isfinite(values).all())


# --- The variables of an object, with their names -----------------------------------------------------------------

_Member = tuple[str, Any, bool]


def _members(value: Any, keyword: str) -> Iterator[_Member]:
    if isinstance(value, dict):
        value = [value[key] for key in sorted(value)]
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _members(item, keyword)
    elif _is_variable(value):
        yield _name(value), value, _is_per_replica(value)
    elif (listed := _listed(value)) is not None:
        yield from listed
    elif isinstance(value, tf.__internal__.tracking.Trackable):
        for name, v in _tracked(value):
            yield name, v, _is_per_replica(v)
    else:
        raise InputError(
            f"variables_of({keyword}=...) accepts only objects with variables. Received: {type(value).__name__}. "
            "Expected: a Keras model, optimizer, metric or layer, a tf.Module, a tf.Variable, or a list of those."
        )


def _listed(value: Any) -> list[_Member] | None:
    """Return the variables of a Keras 2 or 3 object, or None for any other object."""
    if not _is_of_keras(value):
        return None
    if hasattr(value, "state") and not hasattr(value, "variables"):  # a seed generator
        return [(_name(value.state), value.state, _is_per_replica(value.state))]
    optimizer = getattr(value, "optimizer", None)
    is_optimizer = hasattr(value, "apply_gradients")
    members = [(_name(v), v, not is_optimizer and _is_per_replica(v)) for v in _called(value.variables)]
    if optimizer is not None and hasattr(optimizer, "apply_gradients"):
        members += [(_name(v), v, False) for v in _called(optimizer.variables)]
    if hasattr(value, "metrics_variables"):
        return members + [(_name(v), v, _is_per_replica(v)) for v in value.metrics_variables]
    metrics = [(f"{metric.name}/{_name(v)}", v) for metric in getattr(value, "metrics", ()) for v in metric.variables]
    return members + [(name, v, _is_per_replica(v)) for name, v in metrics]


def _tracked(value: Any) -> Iterator[tuple[str, Any]]:
    """Walk the attributes breadth-first, so that each variable gets its shortest name."""
    queue, visited = [("", value)], {id(value)}
    while queue:
        name, owner = queue.pop(0)
        for attribute, child in sorted(tf.train.TrackableView.children(owner).items()):
            if id(child) not in visited:
                visited.add(id(child))
                path = f"{name}/{attribute}" if name else attribute
                if _is_variable(child):
                    yield path, child
                else:
                    queue.append((path, child))


def _called(variables: Any) -> Iterable[Any]:
    return list(variables() if callable(variables) else variables)  # a method in older optimizers of tf_keras


def _is_of_keras(value: Any) -> bool:
    return any(cls.__module__.split(".")[0] in ("keras", "tf_keras") for cls in type(value).__mro__)


def _is_keras(variable: Any) -> bool:
    # An attribute that a distributed variable lacks is looked up in its value, a sum over all tasks: no other task has part.
    if isinstance(variable, (tf.Variable, tf.distribute.DistributedValues)):
        return False
    return hasattr(variable, "path") and hasattr(variable, "value") and not callable(variable.value)


def _is_variable(value: Any) -> bool:
    return _is_keras(value) or isinstance(value, tf.Variable) or is_sharded(value)


def is_sharded(value: Any) -> bool:
    """True for a variable that a partitioner has divided among parameter servers; it is saved as one."""
    return type(value).__name__ == "ShardedVariable"


def value_of(variable: Any) -> Any:
    """Return TensorFlow's variable of a Keras variable, and any other variable itself."""
    return variable.value if _is_keras(variable) else variable


def _name(variable: Any) -> str:
    return str(variable.path) if _is_keras(variable) else str(variable.name).removesuffix(":0")


def _is_per_replica(variable: Any) -> bool:
    """Return whether replicas may hold different values of a variable that is not an optimizer's.

    Keras 3 makes moving statistics mirrored and yet lets every replica write its own. Frozen weights were created trainable.
    """
    value = value_of(variable)
    if not isinstance(value, tf.distribute.DistributedValues):
        return False
    if value.synchronization == tf.VariableSynchronization.ON_READ:
        return True
    return _is_keras(variable) and not components(variable)[0].trainable


# --- Unique names -------------------------------------------------------------------------------------------------


def _was_seen(variable: Any, visited: set[int]) -> bool:
    value = value_of(variable)
    again = id(value) in visited
    visited.add(id(value))
    return again


def _problems(name: str, variable: Any) -> Iterator[str]:
    value = value_of(variable)
    is_variable = isinstance(value, (tf.Variable, tf.distribute.DistributedValues)) or is_sharded(value)
    if not is_variable or not _has_memory(variable):
        yield f"Variable {name!r} cannot be saved: it is a {type(value).__name__}. Build its owner first."
    elif value.dtype in _NO_NUMBERS or value.dtype.is_quantized or value.dtype.size < 1:
        kind = _NO_NUMBERS.get(value.dtype, value.dtype.name)
        yield f"Variable {name!r} cannot be saved: it holds {kind}. Expected: numbers or booleans."


def _has_memory(variable: Any) -> bool:
    # In a strategy's scope, which tf_keras uses, a distributed variable has no handle; its components do.
    return all(is_sharded(component) or hasattr(component, "handle") for component in components(variable))


def _handles(component: Any) -> tuple[Any, ...]:
    return tuple(part.handle for part in (component.variables if is_sharded(component) else [component]))


def _numbered(members: list[_Member]) -> list[_Member]:
    count: Counter[str] = Counter()
    all_names = {name for name, _, _ in members}

    def number(name: str) -> str:
        count[name] += 1
        while count[name] > 1 and f"{name}#{count[name]}" in all_names:
            count[name] += 1
        return name if count[name] == 1 else f"{name}#{count[name]}"

    return [(number(name), v, per_replica) for name, v, per_replica in members]


def _unique(by_keyword: dict[str, list[_Member]]) -> list[_Member]:
    users = Counter(name for members in by_keyword.values() for name, _, _ in members)
    prefixed = [
        (f"{keyword}/{name}" if any(users[other] > 1 for other, _, _ in members) else name, v, per_replica)
        for keyword, members in by_keyword.items()
        for name, v, per_replica in members
    ]
    users = Counter(name for name, _, _ in prefixed)
    if twice := sorted(name for name, number in users.items() if number > 1):
        raise InputError(f"Two variables have the name {twice[0]!r}. Next: pass the objects under other keywords.")
    return prefixed
