"""The class of each backend's options, by the name of the backend, such as `Vertex` for "vertex".

The registry `sdk.backends` fills this table, and `import sdk` loads the registry: a plan's JSON names its backend, and
`sdk.job` imports none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .targets import Target

LOADERS: dict[str, Callable[[], type[Target]]] = {}


def every() -> dict[str, type[Target]]:
    """Return the classes of all backends with options."""
    return {name: load() for name, load in LOADERS.items()}


def backend_of(value: object) -> str | None:
    """Return the backend of these options by name; None for anything else. A subclass may belong to another backend."""
    names = {kind: name for name, kind in every().items()}
    return next((names[kind] for kind in type(value).__mro__ if kind in names), None)
