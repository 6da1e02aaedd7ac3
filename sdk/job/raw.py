"""JSON that a user merges into a request, for fields that podlift does not know."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

# More digits than any number of items.
_DIGITS = 4


def patched(value: Any, patch: Any) -> Any:
    """Merge a patch into a value. Lists are replaced, or patched by index. None removes."""
    if not isinstance(patch, Mapping):
        return patch
    if isinstance(value, list) and patch and all(name.isdecimal() and len(name) <= _DIGITS for name in patch):
        # Items may be added after the end, as for an evaluator's pool.
        items = [*value, *({} for _ in range(len(value), 1 + max(map(int, patch))))]
        for name, item in patch.items():
            items[int(name)] = patched(items[int(name)], item)
        return [item for item in items if item is not None]
    merged = dict(value) if isinstance(value, Mapping) else {}
    for name, item in patch.items():
        if item is None:
            merged.pop(name, None)
        else:
            merged[name] = patched(merged.get(name), item)
    return merged


def leaves(patch: Mapping[str, object], above: Sequence[str] = ()) -> list[str]:
    paths: list[str] = []
    for name, item in patch.items():
        path = [*above, name]
        paths += leaves(item, path) if isinstance(item, Mapping) and item else [".".join(path)]
    return paths
