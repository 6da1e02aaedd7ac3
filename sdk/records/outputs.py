"""What the program has left: found when its attempt is over, and brought to where it outlives the attempt's folders.

From the first task's copy of the bundle come the files that are new or changed, from the model's folder all of them. It is
done after every end that a supervisor lives to see; what resists is named in the record instead of failing the run.
"""

from __future__ import annotations

import hashlib
import os
import posixpath
import shutil
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from ..spec.layout import RunPaths
from ..storage import posix
from ..storage.trees import inside, prefixes, put, put_link, readable, walk, why
from .recorder import Recorder

# More than any training program leaves; a runaway one must not keep its run from ending.
_MAX_FILES = 200_000
_MAX_NAMED = 100
_CHUNK_BYTES = 1024 * 1024

Wanted = Callable[[str, os.stat_result], bool]
Planned = Callable[[], Mapping[str, tuple[int, str]]]


def collect(
    paths: RunPaths, attempt: int, first: str, planned: Planned, recorder: Recorder, *, model: bool = True
) -> None:
    """Bring what the first task has left to the run's outputs, and record it; raises for nothing that it meets there.

    Args:
        paths: the run, whose tasks are gone.
        attempt: which try of it is over.
        first: name of the first task.
        planned: returns the size in bytes and the sha256 of each file of the bundle, by path.
        recorder: the supervisor's, for that attempt.
        model: False where the model's folder is no folder of this machine.
    """
    collection = _Collection(paths)
    try:
        began_ns = _began_ns(paths, attempt, first)
        # Until then the task had no copy of the bundle, or half of one.
        if began_ns is not None:
            work = paths.work(attempt, first)
            collection.bring(work, paths.outputs_work, _new_or_changed(planned(), work, began_ns))
        if model and (began_ns is not None or os.path.lexists(paths.model)):
            collection.bring(paths.model, paths.outputs_model, lambda path, info: True)
    except Exception as error:
        traceback.print_exc()
        collection.skipped["/"] = f"{type(error).__name__}: {error}"
    if os.path.isdir(paths.outputs):
        posix.sync_tree(paths.outputs)
    # What keeps a record from being written, a full disk, keeps the verdict from it too: that one says so.
    with suppress(OSError):
        recorder.record("collected", **collection.data())


class _Collection:
    """What was brought so far; `skipped` names what was not, and why."""

    def __init__(self, paths: RunPaths) -> None:
        self.skipped: dict[str, str] = {}
        self._paths = paths
        self._files = self._size_bytes = 0
        self._folders: set[str] = set()

    def data(self) -> dict[str, Any]:
        """Return the record."""
        named = [[readable(path), reason] for path, reason in list(self.skipped.items())[:_MAX_NAMED]]
        counts = {"files": self._files, "bytes": self._size_bytes, "skipped_count": len(self.skipped)}
        return {**counts, "skipped": named}

    def bring(self, top: str, target: str, wanted: Wanted) -> None:
        """Bring the wanted files below `top` to `target`, then the links that lead to one of them."""
        label = posixpath.relpath(target, self._paths.outputs)
        problem = self._why_not(top)
        if problem:
            self.skipped[f"{label}/"] = problem
            return
        tree = walk(top, at_most=_MAX_FILES)
        self.skipped.update({f"{label}/{path}": reason for path, reason in tree.others.items()})
        for path, info in tree.files.items():
            try:
                if wanted(path, info):
                    self._bring_file(f"{top}/{path}", f"{target}/{path}")
                    self._files += 1
                    self._size_bytes += info.st_size
            except OSError as error:
                self.skipped[f"{label}/{path}"] = why(error)
        for path in tree.links:
            try:
                reason = self._bring_link(top, target, path)
            except OSError as error:
                reason = why(error)
            self._files += not reason
            if reason:
                self.skipped[f"{label}/{path}"] = reason

    def _why_not(self, top: str) -> str:
        if not os.path.lexists(top):
            return "the program has removed this folder"
        # What lies behind a link in the folder's place is not what the program has left here.
        real = os.path.realpath(self._paths.url) + top.removeprefix(self._paths.url)
        if os.path.realpath(top) != real or not os.path.isdir(top):
            return "the program has put something else in the place of this folder"
        return ""

    def _bring_file(self, source: str, target: str) -> None:
        # A second name can be given to a file that nobody may read.
        with open(source, "rb"):
            pass
        self._make_room(target)
        put(source, target, link=True)

    def _bring_link(self, top: str, target: str, path: str) -> str:
        """Return why not, "" when it was brought; it leads to the same file as before, by a relative way."""
        leads_to, reason = inside(top, path)
        if leads_to is None:
            return reason
        if not os.path.lexists(f"{target}/{leads_to}"):
            return "a link to what is not collected"
        self._make_room(f"{target}/{path}")
        put_link(os.path.relpath(leads_to, posixpath.dirname(path) or "."), f"{target}/{path}")
        return ""

    def _make_room(self, target: str) -> None:
        """Make the folders above a file; a later attempt's file takes the place of an earlier one's folder, and back."""
        outputs = self._paths.outputs
        below = prefixes(posixpath.relpath(posixpath.dirname(target), outputs))
        for place in [outputs, *(posixpath.join(outputs, folder) for folder in below)]:
            if place in self._folders:
                continue
            if os.path.islink(place) or os.path.isfile(place):
                os.unlink(place)
            os.makedirs(place, exist_ok=True)
            self._folders.add(place)
        if os.path.isdir(target) and not os.path.islink(target):
            shutil.rmtree(target)


def _began_ns(paths: RunPaths, attempt: int, task: str) -> int | None:
    """Return when the task began to run the program, by the file system's own clock; None if it never did."""
    prefix = posixpath.basename(paths.event(attempt, task, 0, "")).partition(".000000.")[0]
    for name in posix.list_names(paths.events):
        if name.startswith(f"{prefix}.") and name.endswith(".entry.json"):
            return os.stat(f"{paths.events}/{name}").st_ctime_ns
    return None


def _new_or_changed(planned: Mapping[str, tuple[int, str]], work: str, began_ns: int) -> Wanted:
    def wanted(path: str, info: os.stat_result) -> bool:
        if path not in planned:
            return not path.endswith(".pyc")
        size, digest = planned[path]
        # Nobody can set this time, and the record of the beginning was written to the same file system: what is older was
        # not touched since. Without it every run would end with reading its whole bundle once more.
        return bool(info.st_size != size or (info.st_ctime_ns >= began_ns and _sha256(f"{work}/{path}") != digest))

    return wanted


def _sha256(path: str) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
