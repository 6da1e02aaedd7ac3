"""Old runs: those that are over, unchanged for long, and not among the newest."""

from __future__ import annotations

import os
import re
import stat
import uuid
from pathlib import Path

from ... import api
from ...spec.layout import RootPaths, RunPaths
from ...status import Status
from ...storage import folders, mounts
from .items import NOT_OURS, SETTLED_S, Item, Look, Pruning, StaysError

_HIDDEN = re.compile(r"\..+\.[0-9a-f]{8}\.pruned")


def old(look: Look) -> list[Item]:
    """Return the runs that would go, and what removals that were cut short have left of others."""
    found, readable, table = [], 0, mounts.mounts()
    everything = look.entries(Path(look.paths.runs))
    for path, info in _newest_first(look, everything):
        status, why = _read(path, table)
        if status is None:
            # Without a plan it may be a submit of this moment, or somebody has removed it in between.
            if path.exists() and (_has_plan(path) or look.now - info.st_mtime >= SETTLED_S):
                look.leave(path, why)
            continue
        readable += 1
        if readable <= look.keep:
            continue
        item = _item("run", path, look, status.state.value)
        if item.age_s >= look.older_than_s and not why:
            found.append(item)
        elif item.age_s >= look.older_than_s:
            look.leave(path, why)
    return found + [_item("remains", path, look) for path, info in everything if is_hidden(path, info)]


def _item(kind: str, path: Path, look: Look, state: str = "") -> Item:
    size_bytes, changed = folders.extent(path)
    return Item(kind=kind, name=path.name, path=str(path), size_bytes=size_bytes, age_s=look.now - changed, state=state)


def remove(item: Item, pruning: Pruning) -> None:
    """Remove a run, unless it has changed since it was found.

    Raises:
        StaysError: it has.
        OSError: it resists, or a part of it.
    """
    folder = Path(item.path)
    if not stat.S_ISDIR(folder.lstat().st_mode):
        raise StaysError("it is no folder any more")
    status, why = _read(folder, mounts.mounts())
    # Gone by now, it could not be read: say that.
    folder.lstat()
    if status is None or why:
        raise StaysError(why)
    if pruning.now - folders.extent(folder)[1] < pruning.older_than_s:
        raise StaysError("something in it has changed")
    hidden = Path(RootPaths(pruning.root).run(f".{item.name}.{uuid.uuid4().hex[:8]}.pruned").url)
    folder.rename(hidden)
    folders.remove(hidden)


def remove_remains(item: Item, pruning: Pruning) -> None:
    """Go on with a removal that was cut short.

    Raises:
        OSError: a part resists.
    """
    if mounts.inside(item.path, mounts.mounts()):
        raise StaysError("something is mounted in it")
    folders.remove(Path(item.path))


def _newest_first(look: Look, everything: list[folders.Entry]) -> list[folders.Entry]:
    """Return the folders that may be runs, in the order of `sdk.runs`."""
    found = []
    for path, info in everything:
        if stat.S_ISLNK(info.st_mode):
            look.leave(path, "it is a link, and links are not followed")
        elif stat.S_ISDIR(info.st_mode) and not path.name.startswith("."):
            found.append((path, info))
        elif not is_hidden(path, info):
            look.leave(path, NOT_OURS)
    return sorted(found, key=lambda entry: (_submitted(*entry), entry[0].name), reverse=True)


def is_hidden(path: Path, info: os.stat_result) -> bool:
    """True for the name that a run has while it is removed."""
    return stat.S_ISDIR(info.st_mode) and _HIDDEN.fullmatch(path.name) is not None


def _submitted(run: Path, info: os.stat_result) -> float:
    try:
        return Path(RunPaths(str(run)).plan).stat().st_mtime
    except OSError:
        return info.st_mtime


def _has_plan(run: Path) -> bool:
    try:
        os.lstat(RunPaths(str(run)).plan)
    except FileNotFoundError:
        return False
    except OSError:
        pass  # it cannot be seen, which is another matter
    return True


def _read(folder: Path, table: list[mounts.Mount]) -> tuple[Status | None, str]:
    """Return how a run is doing, and why it must stay whatever its age; no status for what cannot be read."""
    plan = Path(RunPaths(str(folder)).plan)
    try:
        # A named pipe in its place would be waited for.
        if plan.exists() and not plan.is_file():
            return None, "its plan.json is no file"
        status = api.attach(folder).status()
        owner = folder.lstat().st_uid
    except Exception as error:  # one broken folder must not hide the others
        return None, str(error).rstrip(".") or repr(error)
    if not status.state.terminal:
        return status, f"the run is {status.state.value}"
    if os.geteuid() not in (0, owner):
        return status, "it belongs to another user"
    mounted = mounts.inside(str(folder), table)
    return status, f"something is mounted in it, at {mounted[0]!r}" if mounted else ""
