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
# Adds the backends of installed packages, once: reading their metadata takes longer than `import sdk`.
_adding: list[Callable[[], None]] = []


def add_later(add: Callable[[], None]) -> None:
    """Call a function before the table is read as a whole."""
    _adding.append(add)


def complete() -> dict[str, Callable[[], type[Target]]]:
    """Return the table with the backends of installed packages."""
    while _adding:
        _adding.pop()()
    return LOADERS


def every() -> dict[str, type[Target]]:
    """Return the classes of all backends with options."""
    return {name: load() for name, load in complete().items()}


def backend_of(value: object) -> str | None:
    """Return the backend of these options by name; None for anything else. A subclass may belong to another backend."""
    names = {kind: name for name, kind in every().items()}
    return next((names[kind] for kind in type(value).__mro__ if kind in names), None)
