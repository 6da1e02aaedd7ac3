"""The registry of backends: one row for each, whose classes are imported on demand."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..errors import InputError, nearest

if TYPE_CHECKING:  # a supervisor imports this package, too
    from .base import Backend

_ROWS = {"local": ".local.backend:LocalBackend", "vertex": ".vertex:VertexBackend", "ray": ".ray:RayBackend"}
_registered: dict[str, Callable[[], Backend]] = {}


def register(name: str, make: Callable[[], Backend]) -> None:
    """Add your own backend in this process: `register("mine", MyBackend)`. It cannot replace a built-in one."""
    if name in _ROWS:
        raise InputError(f"A built-in backend cannot be replaced. Received: {name!r}. Next: choose another name.")
    _registered[name] = make


def names() -> list[str]:
    return [*_ROWS, *_registered]


def check_name(name: str) -> str:
    if name in names():
        return name
    raise InputError(f"Unknown backend. Received: {name!r}. {nearest(name, names())}")


def load(name: str) -> Backend:
    """Return the backend called `name`."""
    if check_name(name) in _registered:
        return _registered[name]()
    module, _, attribute = _ROWS[name].partition(":")
    backend: Backend = getattr(importlib.import_module(module, __name__), attribute)()
    return backend
