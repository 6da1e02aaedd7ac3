"""Metrics as numbers by name. A vector becomes several of them, `f1_score/0` and `f1_score/1`, a dict `iou/car`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

# More values of one metric, such as those of a confusion matrix, make no readable curves.
_MOST = 16


def numbers(metrics: Mapping[Any, Any], *, strict: bool = False) -> tuple[dict[str, float], dict[str, str]]:
    """Return the numbers by name, and by the name of each metric that was left out the reason.

    Raises:
        TypeError: with `strict`, a value is neither a number nor a collection of numbers.
    """
    kept: dict[str, float] = {}
    left_out: dict[str, str] = {}
    for name, value in metrics.items():
        parts = dict(islice(_parts(str(name), value), _MOST + 1))
        if not 0 < len(parts) <= _MOST:
            left_out[str(name)] = f"it has more than {_MOST} values" if parts else "it has no values"
            continue
        for part, each in parts.items():
            try:
                kept[part] = float(each)
            except (TypeError, ValueError, OverflowError):
                if strict:
                    raise TypeError(f"A metric must be a number. Received: {part}={each!r}.") from None
                left_out[part] = "it is None" if each is None else f"its type is {type(each).__name__}"
    return kept, left_out


def plain(value: Any) -> Any:
    """Return a tensor or a variable as an array of NumPy, and anything else as it is."""
    return value.numpy() if callable(getattr(value, "numpy", None)) else value


def _parts(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    value = plain(value)
    if isinstance(size := getattr(value, "size", None), int) and callable(getattr(value, "tolist", None)):
        if size > _MOST:
            yield from ((f"{name}/{index}", None) for index in range(size))
            return
        # An array of one element is a number, as in Keras's history.
        value = value.item() if size == 1 else value.tolist()
    if isinstance(value, (list, tuple)):
        value = dict(enumerate(value))
    if not isinstance(value, Mapping):
        yield name, value
        return
    for key, part in value.items():
        yield from _parts(f"{name}/{key}", part)
