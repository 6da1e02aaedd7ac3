"""Small objects that this process has read: while its generation is the same, one is not read again."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

from .store import Stat, Store

_MOST = 20_000
# By store, name and generation.
_known: dict[tuple[str, str, str], object] = {}
_T = TypeVar("_T")


def unchanged(store: Store, stat: Stat, read: Callable[[], _T]) -> _T:
    """Return the value of a listed object, from `read` if this process has not read the same bytes before."""
    place = store.url, stat.key, stat.generation
    value = _known.get(place)
    if value is None:
        value = read()
        if len(_known) >= _MOST:
            _known.clear()
        _known[place] = value
    return cast("_T", value)
