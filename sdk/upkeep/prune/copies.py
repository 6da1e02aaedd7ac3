"""What this machine keeps of roots in buckets: the folders in which its own runs were written, and copies of others.

All of it is in the bucket too, but for a run that this machine has not wholly brought there: that one stays.
"""

from __future__ import annotations

import os
import stat
import uuid
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path

from ... import ids
from ...backends.local import LocalBackend, uploader
from ...errors import PodliftError
from ...records.plans import read_plan
from ...records.recorder import has_ended
from ...spec.layout import RootPaths, RunPaths
from ...storage import folders, mounts
from . import bundles
from .items import SETTLED_S, Item, Look, Pruning, StaysError
from .runs import is_hidden

# The states of a copy whose run is not in the bucket any more, and of one whose run goes from there at the same time.
GONE, GOING = "gone", "going"


def old(look: Look, folder: Path, there: Collection[str]) -> list[Item]:
    """Return the copies that would go, of every root in a bucket, and the bundles that only they need.

    Args:
        look: the root and the rules.
        folder: podlift's cache folder.
        there: ids of the runs that the root has in its bucket; of other roots nobody knows.
    """
    found = []
    for root in _roots(look, folder / "gs"):
        known = there if str(root) == look.local else None
        within = replace(look, paths=RootPaths(str(root)))
        mine = [item for path, info in look.entries(root / "runs") for item in _judged(within, path, info, known)]
        found += mine + bundles.unneeded(within, {item.path for item in mine})
    return found


def _roots(look: Look, folder: Path) -> Iterator[Path]:
    """Yield the folders that hold copies: their depth is that of the prefix in the bucket."""
    inside = [path for path, info in look.entries(folder) if stat.S_ISDIR(info.st_mode)]
    if folder / "runs" in inside:
        yield folder
    for path in inside:
        if folder.name != "runs" or not (ids.is_run_id(path.name) or path.name.startswith(".")):
            yield from _roots(look, path)


def _judged(look: Look, path: Path, info: os.stat_result, there: Collection[str] | None) -> Iterator[Item]:
    size_bytes, changed = folders.extent(path)
    item = Item(kind="copy", name=path.name, path=str(path), size_bytes=size_bytes, age_s=look.now - changed)
    if is_hidden(path, info):
        yield replace(item, kind="remains")
    if not (stat.S_ISDIR(info.st_mode) and ids.is_run_id(path.name)):
        return
    # One that a submit makes at this moment is not in the bucket yet.
    if path.name in look.going and there is not None:
        item = replace(item, state=GOING)
    elif there is not None and path.name not in there and item.age_s >= SETTLED_S:
        item = replace(item, state=GONE)
    if not item.state and item.age_s < look.older_than_s:
        return
    why = _why_not(item, look.older_than_s)
    if why:
        look.leave(path, why)
    else:
        yield item


def _why_not(item: Item, older_than_s: float) -> str:
    """Return why a copy must stay, "" where it may go."""
    paths = RunPaths(item.path)
    mounted = mounts.inside(item.path, mounts.mounts())
    if mounted:
        return f"something is mounted in it, at {mounted[0]!r}"
    try:
        if not is_unbrought(paths):
            return ""
        if not has_ended(paths) and LocalBackend().observe(read_plan(paths)).supervised:
            return "the run goes on"
        if uploader.is_running(paths):
            return "its files are on their way to the bucket"
    except (PodliftError, OSError) as error:
        return str(error).rstrip(".")
    if item.state == GONE and item.age_s >= older_than_s:
        return ""
    return "not all of it is in the bucket: podlift wait brings it"


def is_unbrought(paths: RunPaths) -> bool:
    """True for a run that this machine looks after, or has looked after last, and has not wholly brought to its bucket.

    Raises:
        CorruptRunError: its records are damaged.
    """
    if not os.path.isdir(paths.events):
        return False
    number = uploader.known_resumes(paths)
    return os.path.exists(paths.owner(number)) and not uploader.is_uploaded(paths)


def remove(item: Item, pruning: Pruning) -> None:
    """Remove a copy, unless it is needed by now.

    Raises:
        StaysError: it is.
        OSError: it resists, or a part of it.
    """
    folder = Path(item.path)
    folder.lstat()
    age_s = pruning.now - folders.extent(folder)[1]
    why = _why_not(replace(item, age_s=age_s), pruning.older_than_s)
    if why or (not item.state and age_s < pruning.older_than_s):
        raise StaysError(why or "it was used again")
    hidden = folder.with_name(f".{item.name}.{uuid.uuid4().hex[:8]}.pruned")
    folder.rename(hidden)
    folders.remove(hidden)
