"""The cache of a project's readings: files that did not change are not read again.

It only saves time: a cache that is missing, damaged or cannot be written changes no plan.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .tree import ProjectTree

_VERSION = 1
# The resolution of times in some file systems: a file that changed later than this may change again without a trace.
_SETTLED_NS = 2_000_000_000


@dataclass(frozen=True, kw_only=True)
class ArchiveIndex:
    """The readings of a project."""

    digest: str  # sha256 of its archive
    members: list[list[Any]]  # the fields of each member of the archive
    secrets: list[str]  # paths of files that look like a secret


class ReadCache:
    """The cache of one project, valid as long as the stats of its files and the generated files are the same."""

    def __init__(self, cache: Path | None, project: Path, tree: ProjectTree, generated: Mapping[str, str]) -> None:
        name = hashlib.sha256(str(project).encode("utf-8", "surrogateescape")).hexdigest()
        self._file = None if cache is None else cache / "files" / f"{name}.json"
        newest = max((max(item.stat.st_mtime_ns, item.stat.st_ctime_ns) for item in tree.entries), default=0)
        self._settled = newest + _SETTLED_NS < time.time_ns()
        self._key = _key(tree, generated)

    def load(self) -> ArchiveIndex | None:
        if self._file is None:
            return None
        try:
            about, _, packed = self._file.read_bytes().partition(b"\n")
            is_current = json.loads(about) == self._about(packed)
            return ArchiveIndex(**json.loads(packed)) if is_current else None
        except (OSError, ValueError, TypeError, RecursionError):
            return None

    def save(self, index: ArchiveIndex) -> None:
        if self._file is None or not self._settled:
            return
        part = self._file.with_name(f".{uuid.uuid4().hex}.part")
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            # Not asdict, which copies every member.
            packed = json.dumps(vars(index), separators=(",", ":")).encode()
            part.write_bytes(json.dumps(self._about(packed)).encode() + b"\n" + packed)
            part.replace(self._file)
        except OSError:
            with suppress(OSError):
                part.unlink(missing_ok=True)

    def _about(self, packed: bytes) -> dict[str, object]:
        return {"version": _VERSION, "key": self._key, "check": hashlib.sha256(packed).hexdigest()}


def _key(tree: ProjectTree, generated: Mapping[str, str]) -> str:
    sha = hashlib.sha256()
    for item in tree.entries:
        about: os.stat_result = item.stat
        # No tool can set back the ctime, unlike the mtime.
        marks = (about.st_size, about.st_mtime_ns, about.st_ctime_ns, about.st_ino, about.st_dev, about.st_mode)
        sha.update(f"{item.path}\0{marks}\0".encode())
    sha.update(json.dumps([dict(generated), sorted(tree.forced)], sort_keys=True).encode())
    return sha.hexdigest()
