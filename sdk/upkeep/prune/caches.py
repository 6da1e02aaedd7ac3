"""What podlift keeps for its user beyond a root, and can make again."""

from __future__ import annotations

import stat
from pathlib import Path

from ...process import venv as environments
from ...storage import folders
from .items import Item, Look, Pruning, StaysError


def old(look: Look, cache: Path) -> list[Item]:
    """Return the cached files and environments that would go."""
    found = []
    for path, info in look.entries(cache / "files"):
        age_s = look.now - info.st_mtime
        if path.suffix == ".json" and stat.S_ISREG(info.st_mode) and age_s >= look.older_than_s:
            found.append(Item(kind="cache", name=path.name, path=str(path), size_bytes=info.st_size, age_s=age_s))
    for path in _unused(look, cache):
        size_bytes, changed = folders.extent(path)
        age_s = look.now - changed
        found.append(Item(kind="environment", name=path.name, path=str(path), size_bytes=size_bytes, age_s=age_s))
    return found


def _unused(look: Look, cache: Path) -> list[Path]:
    try:
        return environments.unused(cache, unused_for_s=look.older_than_s, now=look.now)
    except OSError as error:
        look.leave(cache, f"its environments cannot be looked through: {error.strerror or error}")
        return []


def remove_file(item: Item, pruning: Pruning) -> None:
    """Remove a cached file.

    Raises:
        StaysError: it was written again.
    """
    path = Path(item.path)
    if pruning.now - path.lstat().st_mtime < pruning.older_than_s:
        raise StaysError("it was used again")
    path.unlink()


def remove_environment(item: Item, pruning: Pruning) -> None:
    """Remove an environment.

    Raises:
        StaysError: a run uses it.
    """
    path = Path(item.path)
    if path not in environments.unused(path.parent.parent, unused_for_s=pruning.older_than_s, now=pruning.now):
        raise StaysError("it was used again")
    if not environments.remove(path):
        raise StaysError("a run uses it, or a part of it could not be removed")
