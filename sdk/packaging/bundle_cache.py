"""What podlift remembers of a tree that it has read: with nothing changed, no file is read a second time.

A memory is worth nothing but time. One that is gone, damaged, or cannot be written changes no plan.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .tree import Tree

_VERSION = 1
# A file system may keep times no finer than this: what was changed later could be changed again without a trace.
_SETTLED_NS = 2_000_000_000


@dataclass(frozen=True, kw_only=True)
class Packed:
    """What reading a tree gave: the archive's sha256, its members as lists, the paths that hold a secret."""

    digest: str
    members: list[list[Any]]
    secrets: list[str]


class Memory:
    """The memory of one project.

    Args:
        cache: podlift's folder for such things; None for no memory.
        project: the project.
        tree: its files, with what the disk says of them: where that is the same, the bytes are.
        generated: the files that podlift writes itself.
    """

    def __init__(self, cache: Path | None, project: Path, tree: Tree, generated: Mapping[str, str]) -> None:
        name = hashlib.sha256(str(project).encode("utf-8", "surrogateescape")).hexdigest()
        self._file = None if cache is None else cache / "files" / f"{name}.json"
        newest = max((max(item.stat.st_mtime_ns, item.stat.st_ctime_ns) for item in tree.found), default=0)
        self._settled = newest + _SETTLED_NS < time.time_ns()
        self._key = _key(tree, generated)

    def recall(self) -> Packed | None:
        """Return what the tree gave when it was as it is now; None if that is not known."""
        if self._file is None:
            return None
        try:
            data = json.loads(self._file.read_bytes())
            known = (data["version"], data["key"], data["check"]) == (_VERSION, self._key, _check(data["packed"]))
            return Packed(**data["packed"]) if known else None
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None

    def keep(self, packed: Packed) -> None:
        """Remember what the tree gave."""
        if self._file is None or not self._settled:
            return
        part = self._file.with_name(f".{uuid.uuid4().hex}.part")
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            data = asdict(packed)
            about = {"version": _VERSION, "key": self._key, "check": _check(data), "packed": data}
            part.write_text(json.dumps(about))
            part.replace(self._file)
        except OSError:
            with suppress(OSError):
                part.unlink(missing_ok=True)


def _check(packed: Any) -> str:
    return hashlib.sha256(json.dumps(packed, sort_keys=True).encode()).hexdigest()


def _key(tree: Tree, generated: Mapping[str, str]) -> str:
    sha = hashlib.sha256()
    for item in tree.found:
        about: os.stat_result = item.stat
        # A time of change (ctime) cannot be set back by any tool, unlike one of modification.
        marks = (about.st_size, about.st_mtime_ns, about.st_ctime_ns, about.st_ino, about.st_dev, about.st_mode)
        sha.update(f"{item.path}\0{marks}\0".encode())
    sha.update(json.dumps([dict(generated), sorted(tree.forced)], sort_keys=True).encode())
    return sha.hexdigest()
