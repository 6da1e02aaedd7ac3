"""Dataclasses from podlift's own JSON, read with a check of the types, and with the standard library only."""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache, partial
from typing import Any, Literal, TypeVar

from .values import Value, unchecked

_T = TypeVar("_T")
# Reads a value of a type from JSON; the text is its place, for the error.
_Reader = Callable[[Any, str], Any]


def parsed(data: bytes | str) -> Any:
    """Return a value from JSON; ValueError for anything else, however deep it is nested."""
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def decode(kind: type[_T], data: object) -> _T:
    """Return a value of a dataclass from JSON, without fields that it does not have; TypeError if one is missing or wrong."""
    value: _T = _reader(typing.cast("typing.Hashable", kind))(data, kind.__name__)
    return value


@cache
def _reader(kind: Any) -> _Reader:
    """Return the function that reads a type, which is thus examined only once."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind in (Any, object):
        return lambda data, where: data
    if is_dataclass(kind):
        return partial(_fields, kind)
    if origin in (typing.Union, types.UnionType):
        return partial(_first, arguments)
    if origin is Literal:
        return partial(_one_of, arguments)
    if origin in (list, tuple):
        return partial(_items, origin, arguments)
    if origin in (dict, Mapping):
        return partial(_values, _reader(arguments[1]))
    return _float if kind is float else partial(_plain, kind)


def _plain(kind: type, data: Any, where: str) -> Any:
    if type(data) is not kind:
        raise TypeError(f"{where} is {type(data).__name__}")
    return data


def _float(data: Any, where: str) -> float:
    try:
        return float(data) if type(data) is int else _plain(float, data, where)
    except OverflowError:
        raise TypeError(f"{where} is too large") from None


def _one_of(choices: tuple[Any, ...], data: Any, where: str) -> Any:
    if data not in choices:
        raise TypeError(f"{where} is {type(data).__name__}")
    return data


def _items(origin: type, kinds: tuple[Any, ...], data: Any, where: str) -> Any:
    if not isinstance(data, (list, tuple)):
        raise TypeError(f"{where} is {type(data).__name__}")
    if origin is list or kinds[-1] is Ellipsis:
        kinds = (kinds[0],) * len(data)
    if len(kinds) != len(data):
        raise TypeError(f"{where} has {len(data)} items, not {len(kinds)}")
    pairs = enumerate(zip(kinds, data, strict=True))
    return origin(
        item if type(item) is kind else _reader(kind)(item, f"{where}[{index}]") for index, (kind, item) in pairs
    )


def _values(read: _Reader, data: Any, where: str) -> dict[str, object]:
    if not isinstance(data, dict):
        raise TypeError(f"{where} is {type(data).__name__}")
    return {name: read(item, f"{where}[{name!r}]") for name, item in data.items()}


def _first(kinds: tuple[Any, ...], data: Any, where: str) -> Any:
    if type(data) in kinds:
        return data
    for kind in kinds[:-1]:
        try:
            return _reader(kind)(data, where)
        except TypeError:
            pass
    return _reader(kinds[-1])(data, where)


def _fields(kind: Any, data: Any, where: str) -> Any:
    """Return a dataclass from an object, or from a list of its fields."""
    if isinstance(data, kind):
        return data
    if isinstance(data, list):
        data = dict(zip((name for name, *_ in _fields_of(kind)), data, strict=False))
    if not isinstance(data, dict):
        raise TypeError(f"{where} is {type(data).__name__}")
    values = {}
    for name, plain, read, required in _fields_of(kind):
        if name in data:
            item = data[name]
            # Most are plain: a manifest has thousands of them.
            values[name] = item if type(item) in plain else read(item, f"{where}.{name}")
        elif required:
            raise TypeError(f"{where}.{name} is missing")
    return unchecked(kind, values) if issubclass(kind, Value) else kind(**values)


@cache
def _fields_of(kind: Any) -> tuple[tuple[str, tuple[Any, ...], _Reader, bool], ...]:
    """Return for each field its name, the types that are taken as they are, its reader, and whether it must be given."""
    hints = typing.get_type_hints(kind)
    return tuple(
        (
            field.name,
            _alternatives(hints[field.name]),
            _reader(hints[field.name]),
            field.default is field.default_factory is MISSING,
        )
        for field in fields(kind)
    )


def _alternatives(kind: Any) -> tuple[Any, ...]:
    return typing.get_args(kind) if typing.get_origin(kind) in (typing.Union, types.UnionType) else (kind,)
