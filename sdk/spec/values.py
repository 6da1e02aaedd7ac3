"""The base class of a job's values: frozen and strict, with all mistakes in one readable error."""

from __future__ import annotations

from pathlib import PurePath
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from ..errors import InputError, nearest
from ..text import clipped
from .setting_names import RENAMED_FIELDS

SHOWN = 300


class Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    def __init__(self, **data: Any) -> None:
        try:
            super().__init__(**data)
        except ValidationError as error:
            raise InputError(_messages(error, type(self))) from None


def is_utf8(text: str) -> bool:
    """False for a text with surrogates, which words of a shell may contain."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def as_text(value: Any) -> Any:
    return str(value) if isinstance(value, PurePath) else value


def _texts(value: Any) -> Any:
    if isinstance(value, str):
        raise ValueError("must be a list of texts")
    return tuple(as_text(item) for item in value) if isinstance(value, (list, tuple)) else value


def text_or_texts(value: Any) -> Any:
    return as_text(value) if isinstance(value, (str, PurePath)) else _texts(value)


Texts = Annotated[tuple[str, ...], BeforeValidator(_texts)]


def _messages(error: ValidationError, model: type[BaseModel]) -> list[str]:
    return [message for item in error.errors() for message in _message(dict(item), model)]


def _message(item: dict[str, Any], model: type[BaseModel]) -> tuple[str, ...]:
    path = [str(part) for part in item["loc"] if not str(part).startswith(("list[", "dict[", "constrained-", "float"))]
    where = ".".join(path)
    if item["type"] == "extra_forbidden":
        owner = _model_at(model, path[:-1])
        if (owner.__name__, path[-1]) in RENAMED_FIELDS:
            return (f"{owner.__name__}({path[-1]}=...) is now {RENAMED_FIELDS[owner.__name__, path[-1]]}.",)
        return (f"{owner.__name__} has no field {path[-1]!r}. {nearest(path[-1], list(owner.model_fields))}",)
    cause = item.get("ctx", {}).get("error")
    if isinstance(cause, InputError):
        return cause.problems
    message = str(cause) if cause else item["msg"].replace("Input should be", "Must be")
    if item["type"] == "string_unicode":
        message = "Holds bytes that are not UTF-8"
    # Environment values may be secrets and URLs may contain some: their messages give names only.
    silent = item["type"] == "missing" or path[:1] in (["env"], ["inputs"])
    return (f"{where}: {message.rstrip('.')}." + ("" if silent else f" Received: {shown(item['input'])}."),)


def shown(value: Any) -> str:
    """Return a value's repr, clipped to the length of a message; its type if it has no repr."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):
        return f"a {type(value).__qualname__}"
    return clipped(text, SHOWN)


def _model_at(model: type[BaseModel], path: list[str]) -> type[BaseModel]:
    for name in path:
        annotation = model.model_fields[name].annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            model = annotation
    return model
