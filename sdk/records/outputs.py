"""Collects the outputs of the program at the end of an attempt, into a folder that outlives the attempt's own.

Outputs are the new and changed files of the first task's copy of the bundle, and all files of the model folder. They are
collected after every end that the supervisor survives. Files that cannot be collected are named in the record, and do not
fail the run.
"""

from __future__ import annotations

import os
import posixpath
import shutil
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from ..errors import CorruptRunError
from ..job.layout import RunPaths
from ..job.wire import decode, parsed
from ..storage import posix
from ..storage.checksums import sha256
from ..storage.trees import inside, prefixes, put, put_link, readable, walk, why
from .recorder import Recorder

# More than any training program writes. A runaway program must not keep its run from ending.
_MAX_FILES = 200_000
_MAX_NAMED = 100

FileFilter = Callable[[str, os.stat_result], bool]
BundleFiles = Callable[[], Mapping[str, tuple[int, str]]]


@dataclass(frozen=True, kw_only=True)
class OutputsIndex:
    """Properties of the program's files that objects cannot represent: links with their targets, and executable files."""

    links: dict[str, str] = field(default_factory=dict)
    executable: list[str] = field(default_factory=list)

    @classmethod
    def from_json(cls, data: bytes, where: str) -> OutputsIndex:
        """Return the index in outputs.json of a run; CorruptRunError if it is not an index."""
        try:
            return decode(cls, parsed(data))
        except (ValueError, TypeError) as error:
            raise CorruptRunError(f"'{where}/outputs.json' is damaged: {error}. Nothing was downloaded.") from None


def collect(
    paths: RunPaths, attempt: int, first: str, planned: BundleFiles, recorder: Recorder, *, model: bool = True
) -> None:
    """Collect the first task's outputs and record the collected files. Never raises because of the state of a file."""
    collection = _Collection(paths)
    try:
        began_ns = _began_ns(paths, attempt, first)
        # Before that, its copy of the bundle was missing or incomplete.
        if began_ns is not None:
            work = paths.work(attempt, first)
            collection.add(work, paths.outputs_work, _new_or_changed(planned(), work, began_ns))
        if model and (began_ns is not None or os.path.lexists(paths.model)):
            collection.add(paths.model, paths.outputs_model, lambda path, info: True)
    except Exception as error:
        traceback.print_exc()
        collection.skipped["/"] = f"{type(error).__name__}: {error}"
    if os.path.isdir(paths.outputs):
        posix.sync_tree(paths.outputs)
    # If a full disk prevents this record, it also affects the verdict, which reports it.
    with suppress(OSError):
        recorder.record("collected", **collection.data())


class _Collection:
    """The collected outputs so far. `skipped` maps the others to the reason."""

    def __init__(self, paths: RunPaths) -> None:
        self.skipped: dict[str, str] = {}
        self._paths = paths
        self._files = self._size_bytes = 0
        self._folders: set[str] = set()

    def data(self) -> dict[str, object]:
        named = [[readable(path), reason] for path, reason in list(self.skipped.items())[:_MAX_NAMED]]
        counts = {"files": self._files, "bytes": self._size_bytes, "skipped_count": len(self.skipped)}
        return {**counts, "skipped": named}

    def add(self, top: str, target: str, file_filter: FileFilter) -> None:
        """Link or copy the wanted files below `top` to `target`, then the symbolic links to them."""
        label = posixpath.relpath(target, self._paths.outputs)
        problem = self._why_not(top)
        if problem:
            self.skipped[f"{label}/"] = problem
            return
        tree = walk(top, at_most=_MAX_FILES)
        self.skipped.update({f"{label}/{path}": reason for path, reason in tree.others.items()})
        for path, info in tree.files.items():
            try:
                if file_filter(path, info):
                    self._add_file(f"{top}/{path}", f"{target}/{path}")
                    self._files += 1
                    self._size_bytes += info.st_size
            except OSError as error:
                self.skipped[f"{label}/{path}"] = why(error)
        for path in tree.links:
            try:
                reason = self._add_link(top, target, path)
            except OSError as error:
                reason = why(error)
            self._files += not reason
            if reason:
                self.skipped[f"{label}/{path}"] = reason

    def _why_not(self, top: str) -> str:
        if not os.path.lexists(top):
            return "the program removed this folder"
        # Do not follow a link in place of the folder.
        real = os.path.realpath(self._paths.url) + top.removeprefix(self._paths.url)
        if os.path.realpath(top) != real or not os.path.isdir(top):
            return "the program replaced this folder"
        return ""

    def _add_file(self, source: str, target: str) -> None:
        # A hard link can be made even to an unreadable file.
        with open(source, "rb"):
            pass
        self._make_room(target)
        put(source, target, link=True)

    def _add_link(self, top: str, target: str, path: str) -> str:
        """Create a relative link to the same file. Return the reason if that is not possible, else ""."""
        leads_to, reason = inside(top, path)
        if leads_to is None:
            return reason
        if not os.path.lexists(f"{target}/{leads_to}"):
            return "a link to a file that is not collected"
        self._make_room(f"{target}/{path}")
        put_link(os.path.relpath(leads_to, posixpath.dirname(path) or "."), f"{target}/{path}")
        return ""

    def _make_room(self, target: str) -> None:
        """Create the parent folders of a file. A later attempt's file replaces an earlier one's folder, and vice versa."""
        outputs = self._paths.outputs
        below = prefixes(posixpath.relpath(posixpath.dirname(target), outputs))
        for path in [outputs, *(posixpath.join(outputs, folder) for folder in below)]:
            if path in self._folders:
                continue
            if os.path.islink(path) or os.path.isfile(path):
                os.unlink(path)
            os.makedirs(path, exist_ok=True)
            self._folders.add(path)
        if os.path.isdir(target) and not os.path.islink(target):
            shutil.rmtree(target)


def _began_ns(paths: RunPaths, attempt: int, task: str) -> int | None:
    prefix = posixpath.basename(paths.event(attempt, task, 0, "")).partition(".000000.")[0]
    for name in posix.list_names(paths.events):
        if name.startswith(f"{prefix}.") and name.endswith(".entry.json"):
            return os.stat(f"{paths.events}/{name}").st_ctime_ns
    return None


def _new_or_changed(planned: Mapping[str, tuple[int, str]], work: str, began_ns: int) -> FileFilter:
    def differs(path: str, info: os.stat_result) -> bool:
        if path not in planned:
            return not path.endswith(".pyc")
        size, digest = planned[path]
        # Programs cannot set the ctime, and the record of the start is on the same file system: files with an older ctime are
        # unchanged. Without this check, each run would end with reading its whole bundle.
        return bool(info.st_size != size or (info.st_ctime_ns >= began_ns and sha256(f"{work}/{path}") != digest))

    return differs
