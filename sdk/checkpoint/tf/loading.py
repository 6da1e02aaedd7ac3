"""Assigns a checkpoint's values to variables: all of them, or none and one error. Also the values that differ between replicas.

A snapshot holds one value per variable. Between two synchronisations that is not enough: moving statistics of
BatchNormalization and sums of metrics differ between replicas, and a replica continues exactly only with its own. They are
saved by every task, read without communication, restored to the same replica, and merged only if the number of replicas has
changed: sums are added, other numbers averaged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from ..matching import check
from ..restore import LoadedArray
from .object_state import blob_of, split
from .snapshot import Variables, bytes_of, components, is_sharded, value_of


def load(
    variables: Variables,
    loaded: Mapping[str, LoadedArray],
    *,
    per_replica: Mapping[int, bytes] | None = None,
    rank: int = 0,
    tasks: int = 1,
) -> None:
    """Assign the checkpoint's values to the variables on each local replica, or nothing if any of them does not fit.

    Works in every strategy, without communication. `per_replica` holds the blobs of `replica_values` by rank; without them
    every replica gets the first replica's value. The caller builds the missing variables: an optimizer without slots, a model
    that was never called, and metrics before the first step lack some.
    """
    _check(variables, loaded)
    decoded = {task: decode(blob) for task, blob in (per_replica or {}).items()}
    same = all(count == tasks for count, _ in decoded.values())
    blobs = {task: values for task, (_, values) in decoded.items()}
    for path, variable in variables.items():
        value = loaded[path]
        values = for_replicas(path, variable, blobs, rank, same) or [array_of(value.dtype, value.shape, value.data)]
        # `constant` copies: a variable that shared the checkpoint's memory would keep all of it alive.
        tensors = [tf.constant(array, dtype=tf.as_dtype(value.dtype)) for array in values]
        for index, component in enumerate(components(variable)):
            assign(component, tensors[min(index, len(tensors) - 1)])


def assign(component: Any, value: Any) -> None:
    """Assign a value to one replica's variable, without communication."""
    if is_sharded(component):
        component.assign(value)
        return
    with tf.device(component.device):
        component.assign(value, read_value=False)


def _check(variables: Variables, loaded: Mapping[str, LoadedArray]) -> None:
    there = {path: f"{array.dtype}{list(array.shape)}" for path, array in loaded.items()}
    here = {variable.path: f"{variable.dtype.name}{list(variable.shape)}" for variable in variables.first}
    check(
        there,
        here,
        "The checkpoint belongs to a different model ({}): nothing was loaded. Next: undo the change of the model; if "
        "variables are only in the checkpoint, build the model before loading: call it once, and `optimizer.build(variables)`.",
        where="the checkpoint",
    )


# --- Values that differ between replicas ------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ReplicaValues:
    """The values of one variable on one task's replicas; `replicated` if a strategy created it."""

    replicated: bool
    dtype: str
    shape: tuple[int, ...]
    values: tuple[memoryview, ...]


def replica_values(variables: Variables, *, tasks: int = 1) -> bytes:
    """Return this task's per-replica values as a blob. With several `tasks`, variables outside of strategies are included."""
    entries: list[dict[str, object]] = []
    parts: list[memoryview] = []
    for path in variables:
        if path in variables.per_replica or (tasks > 1 and path in variables.alone):
            local = components(variables[path])
            data = [bytes_of(component.read_value()) for component in local]
            first = local[0]
            about = {"path": path, "dtype": first.dtype.name, "shape": first.shape.as_list()}
            entries.append({**about, "replicas": len(data), "replicated": path in variables.per_replica})
            parts += data
    return blob_of({"tasks": tasks, "variables": entries}, parts)


def decode(blob: bytes) -> tuple[int, dict[str, ReplicaValues]]:
    """Return the number of tasks and the values of the task that wrote the blob; ValueError for any other blob."""
    header, view = split(blob)
    start = 0
    variables: dict[str, ReplicaValues] = {}
    for entry in header["variables"]:
        shape, values = tuple(entry["shape"]), []
        size = tf.as_dtype(entry["dtype"]).size * int(np.prod(shape, dtype=np.int64))
        for _ in range(entry["replicas"]):
            values.append(view[start : start + size])
            start += size
        variables[entry["path"]] = ReplicaValues(
            replicated=entry["replicated"], dtype=entry["dtype"], shape=shape, values=tuple(values)
        )
    if start != len(view):
        raise ValueError(f"replica values of {start} bytes in a blob of {len(view)}")
    return header["tasks"], variables


def array_of(dtype: str, shape: tuple[int, ...], data: memoryview) -> Any:
    """Return the bytes as an array that shares their memory."""
    return np.frombuffer(data, dtype=tf.as_dtype(dtype).as_numpy_dtype).reshape(shape)


def for_replicas(
    path: str, variable: Any, blobs: Mapping[int, Mapping[str, ReplicaValues]], rank: int, same: bool
) -> list[Any]:
    """Return the value of each local replica from the blobs of all tasks; empty if no task saved one."""
    local = components(variable)
    saved = {task: values[path] for task, values in blobs.items() if path in values}
    if not saved:
        return []
    mine = saved.get(rank)
    if same and mine is not None and len(mine.values) == len(local):
        return [array_of(mine.dtype, mine.shape, value) for value in mine.values]
    if not any(one.replicated for one in saved.values()):
        return []
    return _merged(
        variable, [array_of(one.dtype, one.shape, value) for _, one in sorted(saved.items()) for value in one.values]
    )


def _merged(variable: Any, values: list[Any]) -> list[Any]:
    count = len(components(variable))
    aggregation = getattr(variable, "aggregation", None)
    if aggregation in ("sum", tf.VariableAggregation.SUM):
        # Each replica gets an equal share, as TensorFlow does when such a variable is assigned outside of a replica.
        strategy = getattr(value_of(variable), "distribute_strategy", None)
        replicas = 1 if strategy is None else strategy.num_replicas_in_sync
        total = np.sum(values, axis=0)
        return [(total / replicas).astype(total.dtype)] * count
    if values[0].dtype.kind in "fc" or values[0].dtype.name == "bfloat16":
        wide = np.complex128 if values[0].dtype.kind == "c" else np.float64
        return [np.mean([v.astype(wide) for v in values], axis=0).astype(values[0].dtype)] * count
    return [values[0]] * count
