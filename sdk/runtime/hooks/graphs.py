"""Questions about the graph of a traced step: the inputs of a tensor, and whether it counts all replicas.

They err towards silence: an operation that they do not know ends the search.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Any

# These pass a change of one input on, as it is or divided among their outputs.
_LINEAR = frozenset({"AddN", "AddV2", "Neg", "Pack", "SelectV2", "StridedSlice", "Sub", "Sum"})
_SAME = frozenset({"Cast", "ExpandDims", "Identity", "Reshape", "Squeeze"})
_PRODUCTS = frozenset({"Mul", "MulNoNan"})
_QUOTIENTS = frozenset({"DivNoNan", "FloorDiv", "RealDiv"})
_SCALING = _LINEAR | _SAME | _PRODUCTS | _QUOTIENTS
_SIZES = frozenset({"Shape", "Size", "Sum"})
_MOST, _NEAR = 20_000, 50


def is_traced(value: Any) -> bool:
    """Return whether a value belongs to the graph of a function; an eager one has no history."""
    return hasattr(getattr(value, "graph", None), "captures") if not hasattr(value, "numpy") else False


# --- History ------------------------------------------------------------------------------------------------------


def history(tensor: Any, within: frozenset[str] | None = None) -> Iterator[Any]:
    """Yield a tensor and all its inputs, nearest first, up to the values that the replicas have exchanged.

    within: the operations to look beyond; None for all.
    """
    waiting, visited = deque([tensor]), {id(tensor)}
    while waiting and len(visited) < _MOST:
        part = waiting.popleft()
        yield part
        if _is_exchanged(part) or (within is not None and part.op.type not in within):
            continue
        for source in _inputs_of(part):
            if id(source) not in visited:
                visited.add(id(source))
                waiting.append(source)


def is_of_data(tensor: Any) -> bool:
    """Return whether a tensor depends on the examples of this replica."""
    return any(part.op.type.startswith("IteratorGetNext") or _is_argument(part) for part in history(tensor))


def knows_replicas(tensor: Any, replicas: int) -> bool:
    """Return whether a value is scaled by the number of replicas, or computed from values that they have exchanged."""
    return any(
        _is_exchanged(part) or _scales(part, replicas) or _is_number(part, replicas)
        for part in history(tensor, _SCALING)
    )


def comes_unscaled(tensor: Any, mark: str, replicas: int) -> Any:
    """Return the `mark` of the tensor that this one was computed from in a few steps; None if one of them scaled it."""
    for part in islice(history(tensor), _NEAR):
        if hasattr(part, mark):
            return getattr(part, mark)
        if _is_exchanged(part) or _scales(part, replicas):
            return None
    return None


def _inputs_of(tensor: Any) -> list[Any]:
    """Return the inputs of an operation, across the borders of functions and branches."""
    if tensor.op.type == "Placeholder":
        return [outer for outer, inner in tensor.graph.captures if inner is tensor and is_traced(outer)]
    return list(tensor.op.inputs)


def _is_argument(tensor: Any) -> bool:
    if tensor.op.type != "Placeholder" or tensor.dtype.name == "resource":
        return False
    return all(inner is not tensor for _, inner in tensor.graph.captures)


def _is_exchanged(tensor: Any) -> bool:
    return bool(tensor.op.type.startswith("Collective"))


def _scales(tensor: Any, replicas: int) -> bool:
    return tensor.op.type in _PRODUCTS | _QUOTIENTS and any(_is_number(factor, replicas) for factor in tensor.op.inputs)


def _is_number(tensor: Any, replicas: int) -> bool:
    value = _constant(tensor)
    # As exact as the type is: in float32, 1/3 is another number.
    precise = 1e-2 if tensor.dtype.size <= 2 else 1e-6
    return value is not None and any(math.isclose(value, size, rel_tol=precise) for size in (replicas, 1 / replicas))


def _constant(tensor: Any) -> float | None:
    """Return a constant of one number; None for other tensors."""
    import tensorflow as tf

    value = tf.get_static_value(tensor) if tensor.shape.num_elements() == 1 else None
    return None if value is None or value.dtype.kind not in "fiu" else float(value.reshape(-1)[0])


# --- Terms of a loss ----------------------------------------------------------------------------------------------


def unscaled_terms(loss: Any, replicas: int) -> Iterator[Any]:
    """Yield the terms of a loss that are as large on a replica as on one worker: means of examples, regularizers."""
    waiting, visited = [loss], set[int]()
    while waiting:
        term = waiting.pop()
        if id(term) in visited or not term.dtype.is_floating or _constant(term) is not None:
            continue
        visited.add(id(term))
        kind = term.op.type
        if kind == "Mean" and _averages_examples(term):
            yield term
        elif kind == "Mean" or kind in _LINEAR | _SAME:
            waiting += term.op.inputs
        elif kind in _PRODUCTS | _QUOTIENTS:
            if (factors := _terms_of_product(term, replicas)) is None:
                yield term
            else:
                waiting += factors
        elif not is_of_data(term):
            yield term


def _terms_of_product(product: Any, replicas: int) -> list[Any] | None:
    """Return the factors in which to search on; None if the product is an unscaled term itself."""
    one, other = product.op.inputs
    if knows_replicas(one, replicas) or knows_replicas(other, replicas):
        return []
    if _constant(one) is not None or _constant(other) is not None:
        return [one, other]  # constants are passed over
    if product.op.type in _QUOTIENTS and _is_size(other) and _is_sum(one):
        return None
    of_data = [factor for factor in (one, other) if is_of_data(factor)]
    if len(of_data) == 1:
        return of_data
    return [] if of_data else None


def _averages_examples(mean: Any) -> bool:
    """Return whether a mean is one over the first axis: not over features, nor over a few losses."""
    import tensorflow as tf

    values, axes = mean.op.inputs
    numbers = tf.get_static_value(axes)
    rank = values.shape.rank
    firsts = {0, -rank} if rank else {0}
    if mean.shape.rank and values.shape[0] is not None:
        return False  # the first axis may be one of samples or of steps, and the examples are left
    return values.op.type != "Pack" and numbers is not None and bool(firsts & set(numbers.reshape(-1).tolist()))


def _is_sum(tensor: Any) -> bool:
    return any(part.op.type == "Sum" for part in history(tensor, _SAME))


def _is_size(tensor: Any) -> bool:
    return is_of_data(tensor) and any(part.op.type in _SIZES for part in history(tensor, _SCALING - {"Sum"}))


# --- Changes of a variable ----------------------------------------------------------------------------------------


def update_of(value: Any, handle: Any) -> str:
    """Return how a value that a variable is assigned depends on the variable's old one.

    "sum" if something is added to it, "max" or "min", "other" if it is not a part of a sum, "" if that is not known.
    """
    if _is_read(value, handle):
        return "sum"
    if not any(_is_handle(part, handle) for part in history(value)):
        return "other"
    kind, inputs = value.op.type, list(value.op.inputs)
    if kind in ("Mul", "RealDiv"):
        return "other"
    if kind in ("Maximum", "Minimum"):
        return kind[:3].lower() if any(_is_read(part, handle) for part in inputs) else ""
    if kind == "SelectV2":
        inputs = inputs[1:]
    elif kind not in _SAME | {"AddN", "AddV2", "Sub"}:
        return ""
    else:
        inputs = [part for part in inputs if any(_is_handle(old, handle) for old in history(part))]
    updates = {update_of(part, handle) for part in inputs}
    return "other" if "other" in updates else updates.pop() if len(updates) == 1 else ""


def keeps(value: Any, handle: Any) -> bool:
    """Return whether a variable is assigned a value that it has, or had."""
    if value.op.type == "SelectV2":
        return all(_is_read(part, handle) for part in value.op.inputs[1:])
    return _is_read(value, handle)


def _is_read(tensor: Any, handle: Any) -> bool:
    if tensor.op.type in _SAME:
        return _is_read(tensor.op.inputs[0], handle)
    return tensor.op.type == "ReadVariableOp" and any(_is_handle(part, handle) for part in history(tensor))


def _is_handle(tensor: Any, handle: Any) -> bool:
    if tensor.dtype.name != "resource" or tensor.op.type != "Placeholder":
        return False
    return any(inner is tensor and outer is handle for outer, inner in tensor.graph.captures)
