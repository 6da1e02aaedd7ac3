"""Bundles that no plan refers to. A submit may take one up at any moment: it touches the bundle first, then writes its plan."""

from __future__ import annotations

import re
import stat
import uuid
from pathlib import Path

from ...spec.layout import RootPaths, RunPaths
from ...storage import folders
from .items import NOT_OURS, SETTLED_S, Item, Look, Pruning, StaysError

_BUNDLE = re.compile(r"([0-9a-f]{64})\.tar")
_HIDDEN = re.compile(r"\.[0-9a-f]{64}\.[0-9a-f]{8}\.pruned\.tar")
_DIGEST = re.compile(rb"[0-9a-f]{64}")


def unneeded(look: Look, going: set[str]) -> list[Item]:
    """Return the bundles that would go once some runs are gone, and what removals that were cut short have left.

    Args:
        look: the root and the rules.
        going: paths of the runs.
    """
    found, remains, folder = [], [], Path(look.paths.bundle("")).parent
    for path, info in look.entries(folder):
        match, age_s = _BUNDLE.fullmatch(path.name), look.now - info.st_mtime
        size_bytes = info.st_size
        if _HIDDEN.fullmatch(path.name) and stat.S_ISREG(info.st_mode):
            # Its time is the bundle's own. Since it was renamed it may be on its way back.
            hidden_s = look.now - info.st_ctime
            if hidden_s >= SETTLED_S:
                remains.append(
                    Item(kind="remains", name=path.name, path=str(path), size_bytes=size_bytes, age_s=hidden_s)
                )
        elif age_s < SETTLED_S:
            continue
        elif match and stat.S_ISREG(info.st_mode):
            found.append(Item(kind="bundle", name=match[1], path=str(path), size_bytes=size_bytes, age_s=age_s))
        else:
            look.leave(path, "a submit has left it half" if path.name.endswith(".part") else NOT_OURS)
    # Read behind the bundles: a submit of this moment has touched its bundle, or its plan can be read by now.
    needed, unknown = needed_by_plans(look.paths, going)
    if unknown and found:
        look.leave(folder, unknown)
        found = []
    return [item for item in found if item.name not in needed] + remains


def needed_by_plans(paths: RootPaths, going: set[str]) -> tuple[set[str], str]:
    """Return the digests that the plans of all runs but some hold; and why no bundle can be spared, if that is so."""
    needed: set[str] = set()
    where = paths.runs
    try:
        # Also what is damaged, hidden or a link: reading harms nobody, and a bundle too many costs little.
        for path, _ in folders.entries(Path(paths.runs)):
            plan = Path(RunPaths(str(path)).plan)
            where = str(plan)
            if str(path) in going or not plan.exists():
                continue
            # The digests of single files are found as well: none is a bundle's.
            # A run that was resumed with other code has several plans.
            plans = [plan, *plan.with_name("plans").glob("*.json")]
            digests = [found for one in plans if one.is_file() for found in _DIGEST.findall(one.read_bytes())]
            if not digests:
                raise OSError("it holds no digest")
            needed |= {digest.decode() for digest in digests}
    except FileNotFoundError:
        return needed_by_plans(paths, going)  # a run went in between
    except OSError as error:
        why = error.strerror or error
        return needed, f"nobody can tell which bundle {where!r} needs ({why}). Repair or remove it first"
    return needed, ""


def remove(item: Item, pruning: Pruning, needed: set[str], unknown: str) -> None:
    """Remove a bundle, unless somebody needs it by now.

    Args:
        item: the bundle.
        pruning: when it was found.
        needed: what `needed_by_plans` returned.
        unknown: likewise.

    Raises:
        StaysError: somebody does.
        OSError: it resists.
    """
    if unknown or item.name in needed:
        raise StaysError(unknown or "a run needs it")
    bundle = Path(item.path)
    hidden = bundle.with_name(f".{item.name}.{uuid.uuid4().hex[:8]}.pruned.tar")
    bundle.rename(hidden)
    # Who touched it before it was hidden counts on it; who looks for it from now on writes it anew.
    if pruning.now - hidden.lstat().st_mtime < SETTLED_S:
        hidden.replace(bundle)
        raise StaysError("a submit has taken it up")
    hidden.unlink()
