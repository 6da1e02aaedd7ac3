"""The return value of the program's function as JSON. Values that JSON cannot hold become null and are reported.

The training is complete at this point, so nothing here fails it.
"""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

# Larger arrays belong into a file.
MAX_NUMBERS = 10_000
_DEPTH = 100
# As protocol buffers write them: JSON has no such numbers.
_NOT_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def encode(value: Any) -> tuple[Any, list[str]]:
    """Return a value as JSON, and a sentence for each part of it that had to become null."""
    coder = _Coder()
    encoded = coder.of(value, "value", ())
    return encoded, coder.refused


class _Coder:
    def __init__(self) -> None:
        self.refused: list[str] = []

    def of(self, value: Any, path: str, above: tuple[int, ...]) -> Any:
        try:
            return self._of(value, path, above)
        except Exception as error:  # the program's classes may raise anything
            return self._refuse(value, path, f"{type(error).__name__}: {error}"[:200])

    def _of(self, value: Any, path: str, above: tuple[int, ...]) -> Any:
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            return str.__str__(value)
        if isinstance(value, int):
            number = int(value)
            json.dumps(number)  # raises if the number has too many digits
            return number
        if isinstance(value, float):
            return float(value) if math.isfinite(value) else _NOT_FINITE[str(float(value))]
        if isinstance(value, PurePath):
            return str(value)
        if isinstance(value, (datetime.date, datetime.time)):
            return value.isoformat()
        if isinstance(value, (Mapping, list, tuple, set, frozenset)):
            return self._container(value, path, above)
        return self._numbers(value, path, above)

    def _container(self, value: Any, path: str, above: tuple[int, ...]) -> Any:
        if id(value) in above:
            return self._refuse(value, path, "it contains itself")
        if len(above) >= _DEPTH:
            return self._refuse(value, path, f"it is nested more than {_DEPTH} levels deep")
        inner = (*above, id(value))
        if isinstance(value, Mapping):
            return self._mapping(value, path, inner)
        items = sorted(value, key=repr) if isinstance(value, (set, frozenset)) else value
        return [self.of(item, f"{path}[{index}]", inner) for index, item in enumerate(items)]

    def _mapping(self, value: Mapping[Any, Any], path: str, inner: tuple[int, ...]) -> dict[str, object]:
        mapped: dict[str, object] = {}
        for key, item in value.items():
            item_path = f"{path}[{key!r}]"
            name = key if isinstance(key, str) else self.of(key, f"the key of {item_path}", inner)
            if isinstance(name, (bool, int, float)):
                name = json.dumps(name)
            if isinstance(name, (list, dict)):
                self._refuse(key, f"the key of {item_path}", "a key in JSON is a string")
            elif name in mapped:
                self._refuse(item, item_path, "another key is the same string")
            elif isinstance(name, str):
                mapped[str.__str__(name)] = self.of(item, item_path, inner)
        return mapped

    def _numbers(self, value: Any, path: str, above: tuple[int, ...]) -> Any:
        """Convert arrays and scalars of NumPy, tensors and variables."""
        if not hasattr(value, "dtype"):
            return self._refuse(value, path, "JSON cannot hold it")
        array = value.numpy() if callable(getattr(value, "numpy", None)) else value
        size = int(getattr(array, "size", 1))
        if size > MAX_NUMBERS:
            return self._refuse(value, path, f"it has {size:,} elements, more than {MAX_NUMBERS:,}")
        return self.of(array.tolist(), path, (*above, id(value)))

    def _refuse(self, value: Any, path: str, why: str) -> None:
        kind = type(value)
        name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
        self.refused.append(f"{path} is of type {name}: {why}.")


def note(refused: list[str], most: int = 5) -> str:
    more = f" And {len(refused) - most} more." if len(refused) > most else ""
    return (
        f"Parts of the returned value are stored as null, since JSON cannot hold them: {' '.join(refused[:most])}{more} "
        "Next: return numbers, strings, lists and dicts, and save the rest to files."
    )
