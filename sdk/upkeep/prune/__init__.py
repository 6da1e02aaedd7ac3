"""Removes what nobody needs any more: old runs, bundles that no run refers to, stale caches. `find` looks, `remove` acts.

Everything is judged twice, when it is found and right before it goes. Runs and bundles are renamed first, to a hidden name
beside them: half of a run never reads as a damaged one, and a bundle that a submit takes up at that very moment is put back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ...errors import MissingError, Problems, StoreError
from ...planning.roots import in_bucket, resolve_root
from ...spec.layout import RootPaths
from ...storage.cache import bucket_folder
from . import bucket, bundles, caches, copies, runs
from .items import Item, Left, Look, Pruning, Removal, StaysError

__all__ = ["KEEP", "OLDER_THAN_S", "Item", "Left", "Pruning", "Removal", "find", "remove"]

OLDER_THAN_S = 30 * 86400.0
KEEP = 20


def find(
    root: str | Path,
    *,
    older_than_s: float = OLDER_THAN_S,
    keep: int = KEEP,
    now: float,
    cache: str | Path | None = None,
) -> Pruning:
    """Say what would go, and change nothing: `find(root, older_than_s=86400, now=time.time())`.

    Args:
        root: the folder, or gs://BUCKET/PREFIX, below which runs live.
        older_than_s: runs and caches in which something changed within so many seconds stay.
        keep: so many of the newest runs stay, however old they are.
        now: unix time in seconds.
        cache: podlift's folder among the user's caches; None leaves caches alone, and this machine's copies of runs in buckets.

    Raises:
        InputError: a number is negative, or the root is none.
        StoreError: the bucket cannot be read.
    """
    problems = Problems()
    for name, number in (("older_than_s", older_than_s), ("keep", keep)):
        if not number >= 0:
            problems.found.append(f"{name} must be 0 or more. Received: {number!r}.")
    paths = RootPaths("/")
    with problems.collect():
        paths = RootPaths(resolve_root(root, {}))
    problems.raise_if_any()
    look = Look(paths=paths, older_than_s=older_than_s, keep=keep, now=now)
    there: set[str] = set()
    if in_bucket(paths.root):
        look = replace(look, local="" if cache is None else bucket_folder(Path(cache), paths.root))
        items, there = bucket.old(look)
        look = replace(look, going=frozenset(item.name for item in items if item.kind == "run"))
        items += bucket.unneeded(look, {item.path for item in items})
    else:
        items = runs.old(look)
        items += bundles.unneeded(look, {item.path for item in items})
    if cache is not None:
        items += copies.old(look, Path(cache), there) + caches.old(look, Path(cache))
    left = tuple(look.left)
    return Pruning(root=paths.root, now=now, older_than_s=older_than_s, items=tuple(items), left=left, local=look.local)


def remove(pruning: Pruning) -> Removal:
    """Remove what was found, as far as it is still as it was; one thing that resists does not stop the others."""
    removed, left, problems = [], [], []
    bundles_of = _Bundles(pruning)
    # Bundles come last: a run that resists goes on to need its own.
    for item in sorted(pruning.items, key=lambda item: item.kind == "bundle"):
        try:
            if item.kind == "bundle":
                bundles_of.remove(item)
            else:
                (_WAYS_IN_BUCKETS if in_bucket(item.path) else _WAYS)[item.kind](item, pruning)
            removed.append(item)
        except (FileNotFoundError, MissingError):
            pass  # somebody else has removed it
        except StaysError as error:
            left.append(Left(path=item.path, why=str(error)))
        except StoreError as error:
            problems.append(f"{item.path!r} could not be removed, or only a part of it: {error}")
        except OSError as error:
            problems.append(_explain(item, error))
    return Removal(items=tuple(removed), left=tuple(left), problems=tuple(problems))


class _Bundles:
    """Removes bundles. What the plans of a root need is read once, behind the removal of its runs."""

    def __init__(self, pruning: Pruning) -> None:
        self._pruning = pruning
        self._in_bucket: bucket.Bundles | None = None
        self._in_folders: dict[str, tuple[set[str], str]] = {}

    def remove(self, item: Item) -> None:
        """Remove one."""
        if in_bucket(item.path):
            self._in_bucket = self._in_bucket or bucket.Bundles(self._pruning.root, ())
            self._in_bucket.remove(item)
            return
        root = str(Path(item.path).parent.parent)
        if root not in self._in_folders:
            self._in_folders[root] = bundles.needed_by_plans(RootPaths(root), set())
        bundles.remove(item, self._pruning, *self._in_folders[root])


def _explain(item: Item, error: OSError) -> str:
    if item.kind == "run" and not Path(item.path).exists():
        what = f"Only a part of {item.path!r} could be removed; the rest will be tried again the next time"
    else:
        what = f"{item.path!r} could not be removed"
    return f"{what}: {error.strerror or error} ({error.filename!r})."


_WAYS: dict[str, Callable[[Item, Pruning], None]] = {
    "run": runs.remove,
    "remains": runs.remove_remains,
    "copy": copies.remove,
    "cache": caches.remove_file,
    "environment": caches.remove_environment,
}
_WAYS_IN_BUCKETS: dict[str, Callable[[Item, Pruning], None]] = {
    "run": bucket.remove,
    "remains": bucket.remove_remains,
}
