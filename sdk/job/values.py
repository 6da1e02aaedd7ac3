"""The base of a job's values: frozen dataclasses that are checked where a user makes one, and need only the standard library.

pydantic does the checking and is imported for the first value with a field; a task, where it is not installed, reads values
from JSON (`wire.decode`) and never checks them again.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from enum import Enum
from pathlib import PurePath
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar

_T = TypeVar("_T")
_Given = TypeVar("_Given")


class Unset(Enum):
    """The default of a keyword for which None is a value."""

    UNSET = "UNSET"

    def __repr__(self) -> str:
        return self.value


UNSET = Unset.UNSET

if TYPE_CHECKING:

    class Accepts(Generic[_T, _Given]):
        """The type of a field that accepts more than it stores: the stored type, and the accepted type."""

        def __get__(self, value: object, owner: type) -> _T: ...
        def __set__(self, value: object, accepted: _Given) -> None: ...

else:

    class Accepts:
        def __class_getitem__(cls, types):  # noqa: ANN001, ANN204
            return Annotated[types[0], Written(types[1])]


@dataclass(frozen=True)
class Written:
    """The accepted type of a field that stores another type."""

    type: Any


class _Checked(type):
    """Checks the arguments of every constructor call; a type checker sees the constructor of the dataclass."""

    if not TYPE_CHECKING:

        def __call__(cls, *args, **arguments):  # noqa: ANN002, ANN003, ANN204
            if args:
                arguments |= inspect.signature(cls).bind_partial(*args).arguments
            if not arguments:
                return super().__call__()
            from .edge import checked

            return unchecked(cls, checked(cls, arguments))

    @property
    def __signature__(cls) -> inspect.Signature:
        signature = inspect.signature(vars(cls)["__init__"])
        return signature.replace(parameters=list(signature.parameters.values())[1:])


@dataclass(frozen=True, kw_only=True)
class Value(metaclass=_Checked):
    """The base class: `dataclass(frozen=True, kw_only=True)` decorates each subclass."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: Any) -> Any:
        from .edge import schema

        return schema(cls, handler, unchecked)

    @classmethod
    def conflicts(cls, arguments: Mapping[str, object]) -> list[str]:
        """Return the mistakes in the combination of a constructor's arguments, whether or not each of them is right."""
        return []


_V = TypeVar("_V", bound=Value)


def unchecked(kind: type[_T], values: Mapping[str, object]) -> _T:
    """Return a value with fields that need no check."""
    value: _T = type.__call__(kind, **values)
    object.__setattr__(value, "_given", tuple(values))
    return value


def changed(value: _V, **changes: object) -> _V:
    """Return a value with some other fields, which need no check."""
    return unchecked(type(value), {**{field.name: getattr(value, field.name) for field in fields(value)}, **changes})


def given_fields(value: Value) -> dict[str, Any]:
    """Return the fields that the maker of a value named, without the fields that have their default."""
    return {name: getattr(value, name) for name in getattr(value, "_given", ())}


@dataclass(frozen=True)
class Bounds:
    """The limits of a number or of a text's length; a float may be given as a number without a fraction."""

    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    min_length: int | None = None

    def __get_pydantic_core_schema__(self, source: object, handler: Any) -> Any:
        limits = {name: limit for name, limit in vars(self).items() if limit is not None}
        if source is not float:
            return {**handler(source), **limits}
        number = {**handler(source), **limits, "strict": False, "allow_inf_nan": False}
        return Validator(_no_truth, before=True).__get_pydantic_core_schema__(float, lambda _: number)


@dataclass(frozen=True)
class Validator:
    """A function that raises ValueError for a bad value, and returns a good one, perhaps changed."""

    function: Callable[[Any], Any]
    before: bool = False  # called before the type is checked

    def __get_pydantic_core_schema__(self, source: object, handler: Any) -> Any:
        kind = "function-before" if self.before else "function-after"
        return {"type": kind, "function": {"type": "no-info", "function": self.function}, "schema": handler(source)}


def is_utf8(text: str) -> bool:
    """False for a text with surrogates, which words of a shell may contain."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _no_truth(value: object) -> object:
    # For Python, True is the number 1.
    if isinstance(value, bool):
        raise ValueError("must be a number")
    return value


class JsonObject:
    """Marks a field that holds any JSON object."""

    def __get_pydantic_core_schema__(self, source: object, handler: Any) -> Any:
        from pydantic import JsonValue

        return handler.generate_schema(dict[str, JsonValue])


def default(value: Any) -> Any:
    """Return the default of a field that accepts more than it stores."""
    return value


def as_text(value: object) -> object:
    return str(value) if isinstance(value, PurePath) else value


def _texts(value: object) -> object:
    if isinstance(value, str):
        raise ValueError("must be a list of texts")
    return tuple(as_text(item) for item in value) if isinstance(value, (list, tuple)) else value


def metric_text(value: str) -> str:
    mode, colon, name = value.partition(":")
    if not value.strip() or value != value.strip() or name != name.strip():
        raise ValueError("a metric's name without blanks around it")
    if colon and (mode not in ("min", "max") or not name or name.startswith(("min:", "max:"))):
        raise ValueError("a metric's name, or min:NAME, or max:NAME")
    return value


# The texts for a setting of yes or no.
TRUTH = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


def text_or_texts(value: object) -> object:
    return as_text(value) if isinstance(value, (str, PurePath)) else _texts(value)


Name = Annotated[str, Bounds(min_length=1)]
PathText = Annotated[str, Validator(as_text, before=True)]
Texts = Annotated[tuple[str, ...], Validator(_texts, before=True)]
Seconds = Annotated[float, Bounds(gt=0)]
