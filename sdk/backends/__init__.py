"""Who runs a plan. A table from names to classes, loaded when they are asked for."""

from __future__ import annotations

import importlib
from collections.abc import Callable

from ..errors import InputError, nearest
from .base import Backend

_TABLE = {"local": ".local:Local", "vertex": ".vertex:Vertex"}
_registered: dict[str, Callable[[], Backend]] = {}
# Their machines see nothing of this one: what they share with it lies in a bucket.
IN_CLOUD = ("vertex",)


def register(name: str, make: Callable[[], Backend]) -> None:
    """Add a backend of your own in this process: `register("mine", MyBackend)`. It cannot replace a built-in one.

    Raises:
        InputError: the name belongs to a built-in backend.
    """
    if name in _TABLE:
        raise InputError(f"A built-in backend cannot be replaced. Received: {name!r}. Next: choose another name.")
    _registered[name] = make


def check_name(name: str) -> str:
    """Return `name` if there is such a backend.

    Raises:
        InputError: there is none.
    """
    known = [*_TABLE, *_registered]
    if name in known:
        return name
    raise InputError(f"Unknown backend. Received: {name!r}. {nearest(name, known)}")


def load(name: str) -> Backend:
    """Return the backend called `name`."""
    if check_name(name) in _registered:
        return _registered[name]()
    module, _, attribute = _TABLE[name].partition(":")
    backend: Backend = getattr(importlib.import_module(module, __name__), attribute)()
    return backend
