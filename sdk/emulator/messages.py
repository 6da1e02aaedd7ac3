"""Reads and writes the JSON of Google's messages as strictly as their services do. Pure.

Inside the emulator a message is in one form: camelCase, whole numbers, names of enums, canonical durations, and no field that
has its default value.
"""

from __future__ import annotations

import base64
import json
import math
import re
from decimal import Decimal
from importlib import resources
from typing import Any

from .vertex.errors import invalid

# Written by scripts/emulator_fields from Google's descriptors. A type is a scalar, "Duration", "Timestamp", an enum or a
# message, with "[]" for repeated and "{}" for a map of strings.
_TABLE = json.loads(resources.files(__package__).joinpath("fields.json").read_text())
MESSAGES: dict[str, dict[str, str]] = _TABLE["messages"]
ONEOFS: dict[str, dict[str, list[str]]] = _TABLE["oneofs"]
ENUMS: dict[str, dict[str, int]] = _TABLE["enums"]
# The full name of each message and enum.
_TYPES: dict[str, str] = _TABLE["types"]
_DURATION = re.compile(r"(-?)(\d{1,12})(?:\.(\d{1,9}))?s", re.ASCII)
_TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d{1,9})?([Zz]|[+-]\d\d:\d\d)", re.ASCII)
_WHOLE = re.compile(r"-?\d{1,19}", re.ASCII)
# Of protobuf's own parser.
_MAX_DEPTH = 100
_MAX_DURATION_S = 315_576_000_000
_BITS = {"int32": 32, "int64": 64}
Problems = list[tuple[str, str]]


def read_json(body: bytes) -> Any:
    try:
        return json.loads(body or b"{}", parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise invalid([("", f"Invalid JSON payload received. {error}")]) from None


def read_object(body: bytes) -> dict[str, Any]:
    """Return the object of a body; an empty body is an empty object."""
    value = read_json(body)
    if not isinstance(value, dict):
        raise invalid([("", "Invalid JSON payload received. The body is not an object.")])
    return value


def read_message(kind: str, value: Any, path: str) -> tuple[dict[str, Any], Problems]:
    """Return a message in the emulator's form, and its mistakes; `path` is its place in the request."""
    problems: Problems = []
    return _message(kind, value, path, problems), problems


def to_response(kind: str, value: Any, *, enum_numbers: bool) -> Any:
    """Return a value as an answer holds it; with `enum_numbers`, for `enum-encoding=int`, enums are numbers."""
    if kind.endswith("[]"):
        return [to_response(kind[:-2], item, enum_numbers=enum_numbers) for item in value]
    if kind in MESSAGES:
        fields = MESSAGES[kind]
        return {name: to_response(fields[name], item, enum_numbers=enum_numbers) for name, item in value.items()}
    if kind in ENUMS:
        return ENUMS[kind][value] if enum_numbers else value
    return str(value) if kind == "int64" else value


def duration_s(duration: str) -> float:
    return float(duration[:-1])


def snake_case(name: str) -> str:
    return re.sub(r"([A-Z])", lambda match: f"_{match[1].lower()}", name)


def field_names(message: str) -> dict[str, str]:
    return {spelling: name for name in MESSAGES[message] for spelling in (snake_case(name), name)}


def _no_constant(word: str) -> Any:
    raise ValueError(f"Unexpected token: {word}")


def _message(kind: str, value: Any, path: str, problems: Problems) -> dict[str, Any]:
    if not isinstance(value, dict):
        problems.append((path, _wrong(path, kind, value)))
        return {}
    field_types, names = MESSAGES[kind], field_names(kind)
    message: dict[str, Any] = {}
    present: set[str] = set()
    for spelling, item in value.items():
        name = names.get(spelling)
        if name is None:
            text = f"Invalid JSON payload received. Unknown name {json.dumps(spelling)} at '{path}': Cannot find field."
            problems.append((path, text))
        elif name in present:
            problems.append((path, f"Invalid JSON payload received. '{path}' holds {json.dumps(spelling)} twice."))
        elif item is not None:
            present.add(name)
            read = _value(field_types[name], item, f"{path}.{snake_case(name)}", problems)
            if read not in (None, "", 0, [], "UNSET") or (read == {} and not field_types[name].endswith("{}")):
                message[name] = read
    for oneof, members in ONEOFS.get(kind, {}).items():
        if len(present & set(members)) > 1:
            text = f"Invalid value at '{path}' (oneof), oneof field '{oneof}' is already set. Cannot set a second one."
            problems.append((path, text))
    return message


def _value(kind: str, value: Any, path: str, problems: Problems) -> Any:
    if kind.endswith("[]"):
        if not isinstance(value, list):
            problems.append((path, _wrong(path, kind, value)))
            return None
        return [_value(kind[:-2], item, f"{path}[{number}]", problems) for number, item in enumerate(value)]
    if kind in MESSAGES:
        return _message(kind, value, path, problems)
    try:
        return _map(value) if kind == "{}" else _scalar(kind, value)
    except (ValueError, OverflowError, UnicodeError, ArithmeticError):
        problems.append((path, _wrong(path, kind, value)))
        return None


def _map(value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        raise ValueError
    return {_text(name): _text(text) for name, text in value.items()}


def _scalar(kind: str, value: Any) -> Any:
    """Return a scalar in the emulator's form; None or "UNSET" for the default of its type."""
    if kind in ENUMS:
        return _enum(ENUMS[kind], value)
    if kind in _BITS:
        return _whole(value, _BITS[kind])
    if kind == "bool":
        if not isinstance(value, bool):
            raise ValueError
        return value
    if kind == "Any":
        return _any(value)
    text = _text(value)
    if kind == "bytes":
        return _bytes(text)
    if kind == "Duration":
        return _duration(text)
    if kind == "Timestamp" and not _TIMESTAMP.fullmatch(text):
        raise ValueError
    return text


def _bytes(text: str) -> str:
    """Return bytes in the usual alphabet of base64, with padding; both alphabets are read, as by protobuf's own parser."""
    usual = text.translate(str.maketrans("-_", "+/"))
    return base64.b64encode(base64.b64decode(usual + "=" * (-len(usual) % 4), validate=True)).decode()


def _any(value: Any) -> Any:
    """Return a value of any type that an answer can hold."""
    level = [value]
    for _ in range(_MAX_DEPTH):
        for item in level:
            if isinstance(item, str):
                item.encode("utf-8")
            elif isinstance(item, float) and not math.isfinite(item):
                raise ValueError
        inner = [[*item, *item.values()] if isinstance(item, dict) else item for item in level]
        level = [item for values in inner if isinstance(values, list) for item in values]
        if not level:
            return value
    raise ValueError


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError
    value.encode("utf-8")
    return value


def _enum(numbers: dict[str, int], value: Any) -> str:
    number = numbers.get(value) if isinstance(value, str) else value
    names = [name for name, other in numbers.items() if other == number and type(number) is int]
    if not names:
        raise ValueError
    return names[0] if number else "UNSET"


def _whole(value: Any, bits: int) -> int:
    is_whole = (
        _WHOLE.fullmatch(value) if isinstance(value, str) else type(value) in (int, float) and value == int(value)
    )
    if not is_whole or not -(1 << bits - 1) <= int(value) < 1 << bits - 1:
        raise ValueError
    return int(value)


def _duration(text: str) -> str:
    match = _DURATION.fullmatch(text)
    if match is None or int(match[2]) > _MAX_DURATION_S:
        raise ValueError
    number = Decimal(text[:-1])
    # "0s" is kept: it differs from no duration.
    return f"{number.normalize():f}s" if number else "0s"


def _wrong(path: str, kind: str, value: Any) -> str:
    base = kind.rstrip("[]{}")
    scalars = {"int32": "TYPE_INT32", "int64": "TYPE_INT64", "bool": "TYPE_BOOL", "string": "TYPE_STRING"}
    name = scalars.get(base) or ("TYPE_BYTES" if base == "bytes" else f"type.googleapis.com/{_TYPES.get(base, base)}")
    try:
        text = json.dumps(value)
    except RecursionError:
        text = "..."
    return f"Invalid value at '{path}' ({name}), {text if len(text) <= 100 else text[:100] + '...'}"
