"""What the program's function returns, as JSON: what converts is converted, and the rest is named.

The training is over when this is done, so nothing here fails it: what cannot be kept is null in its place.
"""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

# More numbers than this belong into a file.
MAX_NUMBERS = 10_000
_DEPTH = 100
# As protocol buffers write them in JSON, which has no such numbers.
_NOT_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def encode(value: Any) -> tuple[Any, list[str]]:
    """Return a value as JSON, and a sentence for each part of it that is null there because it cannot be kept."""
    coder = _Coder()
    found = coder.of(value, "value", ())
    return found, coder.refused


class _Coder:
    def __init__(self) -> None:
        self.refused: list[str] = []

    def of(self, value: Any, path: str, above: tuple[int, ...]) -> Any:
        try:
            return self._of(value, path, above)
        except Exception as error:  # the program's own classes may raise whatever they like
            return self._refuse(value, path, f"{type(error).__name__}: {error}"[:200])

    def _of(self, value: Any, path: str, above: tuple[int, ...]) -> Any:
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            return str.__str__(value)
        if isinstance(value, int):
            number = int(value)
            json.dumps(number)  # has a limit of digits
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
            return self._refuse(value, path, "it holds itself")
        if len(above) >= _DEPTH:
            return self._refuse(value, path, f"it lies more than {_DEPTH} levels deep")
        inner = (*above, id(value))
        if isinstance(value, Mapping):
            return self._mapping(value, path, inner)
        items = sorted(value, key=repr) if isinstance(value, (set, frozenset)) else value
        return [self.of(item, f"{path}[{index}]", inner) for index, item in enumerate(items)]

    def _mapping(self, value: Mapping[Any, Any], path: str, inner: tuple[int, ...]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, item in value.items():
            place = f"{path}[{key!r}]"
            name = key if isinstance(key, str) else self.of(key, f"the key of {place}", inner)
            if isinstance(name, (bool, int, float)):
                name = json.dumps(name)
            if isinstance(name, (list, dict)):
                self._refuse(key, f"the key of {place}", "a key in JSON is a text")
            elif name in found:
                self._refuse(item, place, "another key is the same text")
            elif isinstance(name, str):
                found[str.__str__(name)] = self.of(item, place, inner)
        return found

    def _numbers(self, value: Any, path: str, above: tuple[int, ...]) -> Any:
        """Take arrays and scalars of NumPy and of what converts to it: tensors, variables."""
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
    """Return the sentences for people."""
    more = f" And {len(refused) - most} more." if len(refused) > most else ""
    return (
        f"What the function returned is kept without what JSON cannot hold, which is null: {' '.join(refused[:most])}{more} "
        "Next: return numbers, texts, lists and dicts, and save the rest to files."
    )
