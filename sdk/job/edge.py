"""Checks the arguments of values with pydantic: strict types, and all mistakes in one readable error."""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, ValidationError, create_model
from pydantic_core import core_schema

from ..errors import InputError, nearest
from ..text import shown

if TYPE_CHECKING:
    from .values import Value

# The parts that pydantic adds to the place of a mistake.
_OF_PYDANTIC = ("list[", "dict[", "constrained-", "float", "literal[")


def checked(kind: type[Value], arguments: Mapping[str, object]) -> dict[str, object]:
    """Return the arguments of a constructor as its fields; InputError with every mistake."""
    values, problems = dict[str, object](), list[str]()
    try:
        values = _set_fields(_model(kind)(**arguments))
    except ValidationError as error:
        problems = [text for item in error.errors() for text in _messages(dict(item), kind)]
    problems += kind.conflicts(arguments)
    if problems:
        raise InputError(problems)
    return values


def schema(
    kind: type[Value], handler: Any, make: Callable[[type, Mapping[str, object]], object]
) -> core_schema.CoreSchema:
    """Return the schema of a value inside another one: the value itself, or its arguments in a dict."""

    def build(value: object, inner: core_schema.ValidatorFunctionWrapHandler) -> object:
        if isinstance(value, kind):
            return value
        values = _set_fields(inner(value))
        if problems := kind.conflicts(values):
            raise InputError(problems)
        return make(kind, values)

    return core_schema.no_info_wrap_validator_function(build, handler.generate_schema(_model(kind)))


@cache
def _model(kind: type) -> type[BaseModel]:
    """Return a pydantic model with the fields of a value; only the fields that were given are read from it."""
    hints = typing.get_type_hints(kind, include_extras=True)
    members: dict[str, Any] = {
        field.name: (hints[field.name], ... if field.default is field.default_factory is MISSING else None)
        for field in fields(kind)
    }
    return create_model(kind.__name__, __config__=ConfigDict(extra="forbid", strict=True), **members)


def _set_fields(model: BaseModel) -> dict[str, object]:
    return {name: getattr(model, name) for name in model.model_fields_set}


def _messages(item: dict[str, Any], kind: type) -> Sequence[str]:
    path = [str(part) for part in item["loc"] if not str(part).startswith(_OF_PYDANTIC)]
    if len(path) < len(item["loc"]) and item["type"] == "literal_error" and not isinstance(item["input"], str):
        return []  # the other types of the field say more about a value that is no text
    where = ".".join(path)
    if item["type"] == "extra_forbidden":
        owner = _value_at(kind, path[:-1])
        names = [field.name for field in fields(owner)]
        return [f"{owner.__name__} has no field {path[-1]!r}. {nearest(path[-1], names)}"]
    cause = item.get("ctx", {}).get("error")
    if isinstance(cause, InputError):
        return cause.problems
    message = str(cause) if cause else item["msg"].replace("Input should be", "Must be")
    if item["type"] == "string_unicode":
        message = "Holds bytes that are not UTF-8"
    # Environment values may be secrets and URLs may contain some: their messages give names only.
    silent = item["type"] == "missing" or path[:1] in (["env"], ["inputs"])
    return [f"{where}: {message.rstrip('.')}." + ("" if silent else f" Received: {shown(item['input'])}.")]


def _value_at(kind: type, path: Sequence[str]) -> type:
    for name in path:
        hint = typing.get_type_hints(kind).get(name)
        kind = hint if isinstance(hint, type) and is_dataclass(hint) else kind
    return kind
