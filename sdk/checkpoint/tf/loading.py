"""Assigns a checkpoint's values to variables: all of them, or none and one error."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any

import tensorflow as tf

from ...errors import CheckpointMismatchError
from ..restore import LoadedArray
from .replicas import array_of, decode, for_replicas
from .snapshot import Variables, components

_LISTED = 20


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
    every replica gets the first replica's value. The caller builds what is not built yet: an optimizer without slots, a model
    that was never called, and metrics before the first step lack variables.
    """
    _check(variables, loaded)
    decoded = {task: decode(blob) for task, blob in (per_replica or {}).items()}
    same = all(count == tasks for count, _ in decoded.values())
    blobs = {task: values for task, (_, values) in decoded.items()}
    for path, variable in variables.items():
        value = loaded[path]
        values = for_replicas(path, variable, blobs, rank, same) or [array_of(value.dtype, value.shape, value.data)]
        _assign(components(variable), values, tf.as_dtype(value.dtype))


def _assign(local: tuple[Any, ...], values: list[Any], dtype: Any) -> None:
    # `constant` copies: a variable that shared the checkpoint's memory would keep all of it alive.
    tensors = [tf.constant(value, dtype=dtype) for value in values]
    for index, component in enumerate(local):
        assign(component, tensors[min(index, len(tensors) - 1)])


def assign(component: Any, value: Any) -> None:
    """Assign a value to one replica's variable, without communication."""
    with tf.device(component.device):
        component.assign(value, read_value=False)


def _check(variables: Variables, loaded: Mapping[str, LoadedArray]) -> None:
    missing = [path for path in variables if path not in loaded]
    extra = [path for path in loaded if path not in variables]
    different: dict[str, str] = {}
    for path, variable in variables.items():
        if path in loaded:
            local = components(variable)[0]
            now = f"{local.dtype.name}{local.shape.as_list()}"
            then = f"{loaded[path].dtype}{list(loaded[path].shape)}"
            if now != then:
                different[path] = f"{path!r} is {now} in this program and {then} in the checkpoint"
    if missing or extra or different:
        raise CheckpointMismatchError(
            _messages(missing, extra, different), missing=missing, extra=extra, different=different
        )


def _messages(missing: list[str], extra: list[str], different: dict[str, str]) -> list[str]:
    listed = list(_each(missing, extra, different))
    if len(listed) > _LISTED:
        listed[_LISTED:] = [f"and {len(listed) - _LISTED} more"]
    advice = "The checkpoint belongs to a different model: nothing was loaded."
    if extra:
        advice += (
            " If the model is the same, build it before loading: call the model once, and `optimizer.build(variables)`. "
            "Before that it lacks the variables that only the checkpoint has."
        )
    return [advice, *listed]


def _each(missing: list[str], extra: list[str], different: dict[str, str]) -> Iterator[str]:
    yield from different.values()
    for path in missing:
        yield f"the checkpoint lacks {path!r}.{_near(path, extra)}"
    for path in extra:
        yield f"this program lacks {path!r}.{_near(path, missing)}"


def _near(path: str, others: list[str]) -> str:
    near = get_close_matches(path, others, n=1)
    return f" Nearest: {near[0]!r}." if near else ""
