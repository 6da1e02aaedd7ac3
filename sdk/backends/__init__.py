"""Who runs a plan. A table from names to classes, loaded when they are asked for."""

from __future__ import annotations

import importlib

from ..errors import InputError, nearest
from .base import Backend

_TABLE = {"local": "sdk.backends.local:Local"}
# Known words whose backend is not part of this version: the error says so instead of guessing at a typing mistake.
_NOT_YET = {"vertex": "gs://"}


def check_name(name: str, root: str | None = None) -> str:
    """Return `name` if there is such a backend.

    Raises:
        InputError: there is none, or not in this version.
    """
    if name in _TABLE:
        return name
    if name in _NOT_YET:
        scheme = _NOT_YET[name]
        need = "" if (root or "").startswith(scheme) else f" It will also need a {scheme} root; received: {root!r}."
        raise InputError(f"This version of podlift has no backend {name!r} yet.{need} Use backend='local'.")
    raise InputError(f"Unknown backend. Received: {name!r}. {nearest(name, list(_TABLE))}")


def load(name: str) -> Backend:
    """Return the backend called `name`."""
    module, _, attribute = _TABLE[check_name(name)].partition(":")
    backend: Backend = getattr(importlib.import_module(module), attribute)()
    return backend
