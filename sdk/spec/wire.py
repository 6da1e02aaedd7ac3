"""Dataclasses from JSON: what podlift itself wrote is read with a check of its types, and needs only the standard library."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Any, Literal, TypeVar

from .values import Value, unchecked

_T = TypeVar("_T")


def decode(kind: type[_T], data: object) -> _T:
    """Return a value of a dataclass from JSON, without fields that it does not have; TypeError if one is missing or wrong."""
    made: _T = _decode(kind, data, kind.__name__)
    return made


def _decode(kind: Any, data: Any, where: str) -> Any:
    if type(data) is kind or kind in (Any, object):
        return data
    if is_dataclass(kind):
        return data if isinstance(data, typing.cast("type", kind)) else _fields(kind, data, where)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return _first(arguments, data, where)
    if origin is Literal and data in arguments:
        return data
    if kind is float and type(data) is int:
        return _float(data, where)
    if origin in (list, tuple) and isinstance(data, (list, tuple)):
        kinds = [arguments[0]] * len(data) if origin is list or arguments[-1] is Ellipsis else arguments
        if len(kinds) != len(data):
            raise TypeError(f"{where} has {len(data)} items, not {len(kinds)}")
        pairs = enumerate(zip(kinds, data, strict=True))
        return origin(
            item if type(item) is each else _decode(each, item, f"{where}[{index}]") for index, (each, item) in pairs
        )
    if isinstance(data, dict) and (origin is dict or origin is Mapping):
        return {name: _decode(arguments[1], item, f"{where}[{name!r}]") for name, item in data.items()}
    raise TypeError(f"{where} is {type(data).__name__}")


def _first(kinds: tuple[Any, ...], data: Any, where: str) -> Any:
    for kind in kinds[:-1]:
        try:
            return _decode(kind, data, where)
        except TypeError:
            pass
    return _decode(kinds[-1], data, where)


def _fields(kind: Any, data: Any, where: str) -> Any:
    """Return a dataclass from an object, or from a list of its fields."""
    if isinstance(data, list):
        data = dict(zip((name for name, _, _ in _fields_of(kind)), data, strict=False))
    if not isinstance(data, dict):
        raise TypeError(f"{where} is {type(data).__name__}")
    known = {}
    for name, hint, required in _fields_of(kind):
        if name in data:
            item = data[name]
            # Most are plain: a manifest has thousands of them.
            known[name] = item if type(item) is hint else _decode(hint, item, f"{where}.{name}")
        elif required:
            raise TypeError(f"{where}.{name} is missing")
    return unchecked(kind, known) if issubclass(kind, Value) else kind(**known)


@cache
def _fields_of(kind: Any) -> tuple[tuple[str, object, bool], ...]:
    """Return the name and type of each field, and whether it must be given."""
    hints = typing.get_type_hints(kind)
    return tuple(
        (field.name, hints[field.name], field.default is field.default_factory is MISSING) for field in fields(kind)
    )


def _float(data: int, where: str) -> float:
    try:
        return float(data)
    except OverflowError:
        raise TypeError(f"{where} is too large") from None
