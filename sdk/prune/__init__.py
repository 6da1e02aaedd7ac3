"""Removes what nobody needs any more: old runs, bundles that no run refers to, stale caches. `find` looks, `remove` acts.

Everything is judged twice, when it is found and right before it goes. Runs and bundles are renamed first, to a hidden name
beside them: half of a run never reads as a damaged one, and a bundle that a submit takes up at that very moment is put back.
"""

from __future__ import annotations

from pathlib import Path

from ..errors import Problems
from ..layout import RootPaths
from ..packaging.paths import usable
from . import bundles, caches, runs
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
        root: the folder below which runs live.
        older_than_s: runs and caches in which something changed within so many seconds stay.
        keep: so many of the newest runs stay, however old they are.
        now: unix time in seconds.
        cache: podlift's folder among the user's caches; None leaves caches alone.

    Raises:
        InputError: a number is negative, or the root is no folder's path.
    """
    problems = Problems()
    for name, number in (("older_than_s", older_than_s), ("keep", keep)):
        if not number >= 0:
            problems.found.append(f"{name} must be 0 or more. Received: {number!r}.")
    paths = RootPaths("/")
    with problems.collect(), usable("The root", root):
        paths = RootPaths(str(Path(root).expanduser().resolve()))
    problems.raise_if_any()
    look = Look(paths=paths, older_than_s=older_than_s, keep=keep, now=now)
    items = runs.old(look)
    items += bundles.unneeded(look, {item.path for item in items})
    items += [] if cache is None else caches.old(look, Path(cache))
    return Pruning(root=paths.root, now=now, older_than_s=older_than_s, items=tuple(items), left=tuple(look.left))


def remove(pruning: Pruning) -> Removal:
    """Remove what was found, as far as it is still as it was; one thing that resists does not stop the others."""
    removed, left, problems = [], [], []
    needed: tuple[set[str], str] | None = None
    # Bundles come last: a run that resists goes on to need its own.
    for item in sorted(pruning.items, key=lambda item: item.kind == "bundle"):
        try:
            if item.kind == "bundle":
                needed = needed or bundles.needed_by_plans(RootPaths(pruning.root), set())
                bundles.remove(item, pruning, *needed)
            else:
                _WAYS[item.kind](item, pruning)
            removed.append(item)
        except FileNotFoundError:
            pass  # somebody else has removed it
        except StaysError as error:
            left.append(Left(path=item.path, why=str(error)))
        except OSError as error:
            problems.append(_explain(item, error))
    return Removal(items=tuple(removed), left=tuple(left), problems=tuple(problems))


def _explain(item: Item, error: OSError) -> str:
    if item.kind == "run" and not Path(item.path).exists():
        what = f"Only a part of {item.path!r} could be removed; the rest will be tried again the next time"
    else:
        what = f"{item.path!r} could not be removed"
    return f"{what}: {error.strerror or error} ({error.filename!r})."


_WAYS = {
    "run": runs.remove,
    "remains": runs.remove_remains,
    "cache": caches.remove_file,
    "environment": caches.remove_environment,
}
