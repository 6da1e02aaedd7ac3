"""Parses and writes the JSON of a custom job as strictly as the service does. Pure.

Inside the emulator a job is in one form: camelCase, whole numbers, names of enums, canonical durations, and no field that has
its default value.
"""

from __future__ import annotations

import json
import re
from decimal import Decimal
from importlib import resources
from typing import Any

from ..errors import words
from .errors import invalid

# Written by scripts/vertex_fields from Google's descriptors. A type is a scalar, "Duration", "Timestamp", an enum or a message,
# with "[]" for repeated and "{}" for a map of strings.
_TABLE = json.loads(resources.files(__package__).joinpath("fields.json").read_text())
MESSAGES: dict[str, dict[str, str]] = _TABLE["messages"]
ONEOFS: dict[str, dict[str, list[str]]] = _TABLE["oneofs"]
ENUMS: dict[str, dict[str, int]] = _TABLE["enums"]
# The service sets these; values that a client sends are validated and ignored.
_OUTPUTS = words("name state createTime startTime endTime updateTime error webAccessUris satisfiesPzs satisfiesPzi")
_DURATION = re.compile(r"(-?)(\d{1,12})(?:\.(\d{1,9}))?s", re.ASCII)
_TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d{1,9})?([Zz]|[+-]\d\d:\d\d)", re.ASCII)
_WHOLE = re.compile(r"-?\d{1,19}", re.ASCII)
_MAX_DURATION_S = 315_576_000_000
_BITS = {"int32": 32, "int64": 64}
_TYPE = "type.googleapis.com/google.cloud.aiplatform.v1."
Problems = list[tuple[str, str]]


def read_json(body: bytes) -> Any:
    try:
        return json.loads(body, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise invalid([("", f"Invalid JSON payload received. {error}")]) from None


def parse(body: bytes) -> dict[str, Any]:
    found = read_json(body or b"{}")
    problems: Problems = []
    job = _message("CustomJob", found, "custom_job", problems)
    if problems:
        raise invalid(problems)
    return {name: value for name, value in job.items() if name not in _OUTPUTS}


def to_response(message: str, value: dict[str, Any], *, enum_numbers: bool) -> dict[str, Any]:
    """Return a message of this type as an answer holds it; with `enum_numbers`, for `enum-encoding=int`, enums are numbers."""
    return {
        name: _value_to_response(MESSAGES[message][name], each, enum_numbers=enum_numbers)
        for name, each in value.items()
    }


def duration_s(duration: str) -> float:
    return float(duration[:-1])


def snake_case(name: str) -> str:
    """Return the proto's name of a field: "job_spec" for "jobSpec"."""
    return re.sub(r"([A-Z])", lambda found: f"_{found[1].lower()}", name)


def field_names(message: str) -> dict[str, str]:
    """Return the fields of a message by both of their names, "job_spec" and "jobSpec"."""
    return {spelling: name for name in MESSAGES[message] for spelling in (snake_case(name), name)}


def _value_to_response(kind: str, value: Any, *, enum_numbers: bool) -> Any:
    if kind.endswith("[]"):
        return [_value_to_response(kind[:-2], each, enum_numbers=enum_numbers) for each in value]
    if kind in MESSAGES:
        return to_response(kind, value, enum_numbers=enum_numbers)
    if kind in ENUMS:
        return ENUMS[kind][value] if enum_numbers else value
    return str(value) if kind == "int64" else value


def _no_constant(word: str) -> Any:
    raise ValueError(f"Unexpected token: {word}")


def _message(kind: str, value: Any, path: str, problems: Problems) -> dict[str, Any]:
    if not isinstance(value, dict):
        problems.append((path, _wrong(path, kind, value)))
        return {}
    known, names = MESSAGES[kind], field_names(kind)
    found: dict[str, Any] = {}
    seen: set[str] = set()
    for given, each in value.items():
        name = names.get(given)
        if name is None:
            text = f"Invalid JSON payload received. Unknown name {json.dumps(given)} at '{path}': Cannot find field."
            problems.append((path, text))
        elif name in seen:
            problems.append((path, f"Invalid JSON payload received. '{path}' holds {json.dumps(given)} twice."))
        elif each is not None:
            seen.add(name)
            read = _value(known[name], each, f"{path}.{snake_case(name)}", problems)
            if read not in (None, "", 0, [], "UNSET") or (read == {} and not known[name].endswith("{}")):
                found[name] = read
    for oneof, members in ONEOFS.get(kind, {}).items():
        if len(seen & set(members)) > 1:
            text = f"Invalid value at '{path}' (oneof), oneof field '{oneof}' is already set. Cannot set a second one."
            problems.append((path, text))
    return found


def _value(kind: str, value: Any, path: str, problems: Problems) -> Any:
    if kind.endswith("[]"):
        if not isinstance(value, list):
            problems.append((path, _wrong(path, kind, value)))
            return None
        return [_value(kind[:-2], each, f"{path}[{number}]", problems) for number, each in enumerate(value)]
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
    return {_text(name): _text(each) for name, each in value.items()}


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
        return value
    text = _text(value)
    if kind == "Duration":
        return _duration(text)
    if kind == "Timestamp" and not _TIMESTAMP.fullmatch(text):
        raise ValueError
    return text


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError
    value.encode("utf-8")
    return value


def _enum(known: dict[str, int], value: Any) -> str:
    number = known.get(value) if isinstance(value, str) else value
    names = [name for name, each in known.items() if each == number and type(number) is int]
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
    """Return the error for a value of the wrong type, in the words of Google's servers."""
    base = kind.rstrip("[]{}")
    name = {"int32": "TYPE_INT32", "int64": "TYPE_INT64", "bool": "TYPE_BOOL", "string": "TYPE_STRING"}.get(base)
    if base in ("Duration", "Timestamp"):
        name = f"type.googleapis.com/google.protobuf.{base}"
    text = json.dumps(value)
    return f"Invalid value at '{path}' ({name or _TYPE + base}), {text if len(text) <= 100 else text[:100] + '...'}"
