"""What each replica has for itself: saved by every task, given back to the same replica.

A snapshot holds one value of each variable. That is not enough between two synchronisations: the moving statistics of
BatchNormalization and the sums of a metric differ from replica to replica, and only its own ones let a replica go on
exactly where it was. Here they are read without asking the other tasks, and brought together only where the number of
replicas has changed meanwhile: sums are added up, other numbers averaged.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from .snapshot import Variables, bytes_of, components

_LENGTH_BYTES = 8


@dataclass(frozen=True, kw_only=True)
class ReplicaValues:
    """The values that one task's replicas had of one variable; `replicated` if a strategy made it one variable."""

    replicated: bool
    dtype: str
    shape: tuple[int, ...]
    values: tuple[memoryview, ...]


def replica_values(variables: Variables, *, tasks: int = 1) -> bytes:
    """Return what the replicas of this task hold for themselves, for a blob of this task; `load` takes it.

    Args:
        variables: all of them.
        tasks: how many tasks train. With several, a variable that no strategy knows is a task's own too.
    """
    entries: list[dict[str, Any]] = []
    parts: list[memoryview] = []
    for path, variable in variables.items():
        local = components(variable)
        if path in variables.own or (tasks > 1 and len(local) == 1 and not _is_distributed(variable)):
            data = [bytes_of(component.read_value()) for component in local]
            first = local[0]
            known = {"path": path, "dtype": first.dtype.name, "shape": first.shape.as_list()}
            entries.append({**known, "replicas": len(data), "replicated": path in variables.own})
            parts += data
    header = json.dumps({"tasks": tasks, "variables": entries}).encode()
    return b"".join([len(header).to_bytes(_LENGTH_BYTES, "little"), header, *parts])


def _is_distributed(variable: Any) -> bool:
    return isinstance(getattr(variable, "value", None), tf.distribute.DistributedValues) or isinstance(
        variable, tf.distribute.DistributedValues
    )


def decode(blob: bytes) -> tuple[int, dict[str, ReplicaValues]]:
    """Return how many tasks there were, and the values of the task that wrote the blob.

    Raises:
        ValueError: no such blob.
    """
    view = memoryview(blob)
    start = _LENGTH_BYTES + int.from_bytes(view[:_LENGTH_BYTES], "little")
    header = json.loads(bytes(view[_LENGTH_BYTES:start]))
    found: dict[str, ReplicaValues] = {}
    for entry in header["variables"]:
        shape, values = tuple(entry["shape"]), []
        size = tf.as_dtype(entry["dtype"]).size * int(np.prod(shape, dtype=np.int64))
        for _ in range(entry["replicas"]):
            values.append(view[start : start + size])
            start += size
        found[entry["path"]] = ReplicaValues(
            replicated=entry["replicated"], dtype=entry["dtype"], shape=shape, values=tuple(values)
        )
    if start != len(view):
        raise ValueError(f"own values of {start} bytes in a blob of {len(view)}")
    return header["tasks"], found


def array_of(dtype: str, shape: tuple[int, ...], data: memoryview) -> Any:
    """Return the bytes as an array that shares their memory."""
    return np.frombuffer(data, dtype=tf.as_dtype(dtype).as_numpy_dtype).reshape(shape)


def for_replicas(
    path: str, variable: Any, blobs: Mapping[int, Mapping[str, ReplicaValues]], rank: int, same: bool
) -> list[Any]:
    """Return the value of each local replica, or nothing where none of the tasks has saved one.

    Args:
        path: the variable's.
        variable: the variable.
        blobs: what each task has saved.
        rank: this task.
        same: whether there are as many tasks as there were.
    """
    local = components(variable)
    saved = {task: values[path] for task, values in blobs.items() if path in values}
    if not saved:
        return []
    mine = saved.get(rank)
    if same and mine is not None and len(mine.values) == len(local):
        return [array_of(mine.dtype, mine.shape, value) for value in mine.values]
    if not any(own.replicated for own in saved.values()):
        return []
    return _together(
        variable, [array_of(own.dtype, own.shape, v) for _, own in sorted(saved.items()) for v in own.values]
    )


def _together(variable: Any, values: list[Any]) -> list[Any]:
    count = len(components(variable))
    aggregation = getattr(variable, "aggregation", None)
    if aggregation in ("sum", tf.VariableAggregation.SUM):
        # Every replica gets its part, as TensorFlow does when such a variable is assigned outside of a replica.
        replicas = _replicas(variable)
        total = np.sum(values, axis=0)
        return [(total / replicas).astype(total.dtype)] * count
    if values[0].dtype.kind in "fc" or values[0].dtype.name == "bfloat16":
        wide = np.complex128 if values[0].dtype.kind == "c" else np.float64
        return [np.mean([v.astype(wide) for v in values], axis=0).astype(values[0].dtype)] * count
    return [values[0]] * count


def _replicas(variable: Any) -> int:
    value = variable.value if hasattr(variable, "path") else variable
    strategy = getattr(value, "distribute_strategy", None)
    return strategy.num_replicas_in_sync if strategy is not None else 1
