"""Who runs a plan. A table from names to classes, loaded when they are asked for."""

from __future__ import annotations

import importlib

from ..errors import InputError, nearest
from .base import Backend

_TABLE = {"local": ".local:Local", "vertex": ".vertex:Vertex"}
# Their machines see nothing of this one: what they share with it lies in a bucket.
IN_CLOUD = ("vertex",)


def check_name(name: str) -> str:
    """Return `name` if there is such a backend.

    Raises:
        InputError: there is none.
    """
    if name in _TABLE:
        return name
    raise InputError(f"Unknown backend. Received: {name!r}. {nearest(name, list(_TABLE))}")


def load(name: str) -> Backend:
    """Return the backend called `name`."""
    module, _, attribute = _TABLE[check_name(name)].partition(":")
    backend: Backend = getattr(importlib.import_module(module, __name__), attribute)()
    return backend
