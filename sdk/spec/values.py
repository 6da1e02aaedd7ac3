"""What the values of a job have in common: frozen, strict, and their mistakes told in sentences, all at once."""

from __future__ import annotations

from pathlib import PurePath
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from ..errors import InputError, nearest

SHOWN = 300


class Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    def __init__(self, **data: Any) -> None:
        try:
            super().__init__(**data)
        except ValidationError as error:
            raise InputError(_sentences(error, type(self))) from None


def is_utf8(text: str) -> bool:
    """False for a text that was made of other bytes, as words of a shell may be."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def as_text(value: Any) -> Any:
    """Read a path as its text."""
    return str(value) if isinstance(value, PurePath) else value


def _texts(value: Any) -> Any:
    if isinstance(value, str):
        raise ValueError("must be a list of texts")
    return tuple(as_text(item) for item in value) if isinstance(value, (list, tuple)) else value


def text_or_texts(value: Any) -> Any:
    """Read a text, or a list of them."""
    return as_text(value) if isinstance(value, (str, PurePath)) else _texts(value)


Texts = Annotated[tuple[str, ...], BeforeValidator(_texts)]


def _sentences(error: ValidationError, model: type[BaseModel]) -> list[str]:
    return [sentence for item in error.errors() for sentence in _sentence(dict(item), model)]


def _sentence(item: dict[str, Any], model: type[BaseModel]) -> tuple[str, ...]:
    path = [str(part) for part in item["loc"] if not str(part).startswith(("list[", "dict[", "constrained-", "float"))]
    where = ".".join(path)
    if item["type"] == "extra_forbidden":
        owner = _model_at(model, path[:-1])
        return (f"{owner.__name__} has no field {path[-1]!r}. {nearest(path[-1], list(owner.model_fields))}",)
    cause = item.get("ctx", {}).get("error")
    if isinstance(cause, InputError):
        return cause.problems
    said = str(cause) if cause else item["msg"].replace("Input should be", "Must be")
    if item["type"] == "string_unicode":
        said = "Holds bytes that are not UTF-8"
    # The environment's values may be secrets, and URLs may hold some: their sentences give names only.
    silent = item["type"] == "missing" or path[:1] in (["env"], ["inputs"])
    return (f"{where}: {said.rstrip('.')}." + ("" if silent else f" Received: {shown(item['input'])}."),)


def shown(value: Any) -> str:
    """Return how a value is written, cut to what fits into a sentence; its type where it cannot be written."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):
        return f"a {type(value).__qualname__}"
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def _model_at(model: type[BaseModel], path: list[str]) -> type[BaseModel]:
    for name in path:
        annotation = model.model_fields[name].annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            model = annotation
    return model
