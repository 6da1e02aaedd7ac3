"""The parts of registered models that no version needs any more: of removed versions, and of interrupted registrations.

A version needs the manifest that its record names, and the parts that the manifest names. A registration touches what exists of
them before it writes the record: either the record is read here, or the object has changed since it was listed.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ...errors import ConflictError, CorruptObjectError, MissingError
from ...planning.roots import in_bucket
from ...records.sync.index import SYNC_RETRY, in_parallel
from ...registry import files
from ...spec.layout import RootPaths
from ...storage.gcs.requests import ObjectInfo
from ...storage.registry import open_files, open_store
from . import archives, bucket, local
from .archives import OtherRecords
from .local import Candidate, ChangedError, PruneScan

KIND = "model part"
_FOLDERS = ("blobs", "manifests")
_HIDDEN = ".pruned"


@dataclass(frozen=True, kw_only=True)
class _Part:
    path: str
    size_bytes: int
    age_s: float
    version: ObjectInfo | None = None  # in a bucket
    changed: float = 0.0  # in a folder

    @property
    def digest(self) -> str:
        return self.path.rpartition("/")[2]


class ModelParts:
    """The parts and manifests of a root, and then which of them are needed. Files of `removed_runs` do not count."""

    def __init__(self, root: str, removed_runs: frozenset[str], others: OtherRecords, now: float) -> None:
        self._root, self._models = root, RootPaths(root).models
        self._parts: Mapping[str, _Part] = {each.path: each for each in self._listed(now)}
        self._needed: set[str] = set()
        self.unknown = ""  # why no part may be removed
        if self.old():
            self._read(removed_runs, others)

    def _listed(self, now: float) -> Iterator[_Part]:
        for folder in _FOLDERS:
            if in_bucket(self._root):
                found, time = open_files(self._models, retry=SYNC_RETRY).versions(f"{folder}/")
                for each in found:
                    path = f"{self._models}/{each.name}"
                    yield _Part(path=path, size_bytes=each.size, age_s=max(0.0, time - each.changed), version=each)
                continue
            with suppress(FileNotFoundError), os.scandir(f"{self._models}/{folder}") as entries:
                for entry in entries:
                    with suppress(FileNotFoundError):
                        info = entry.stat(follow_symlinks=False)
                        age_s = now - info.st_mtime
                        yield _Part(path=entry.path, size_bytes=info.st_size, age_s=age_s, changed=info.st_mtime)

    def old(self) -> list[_Part]:
        """Return the parts that no registration may be about to need."""
        return [
            each
            for each in self._parts.values()
            if each.age_s >= archives.JOB_SETTLED_S
            and (archives.digests(each.digest.encode()) or _is_hidden(each.path))
        ]

    def _read(self, removed_runs: frozenset[str], others: OtherRecords) -> None:
        if in_bucket(self._root):
            use = bucket.ArchiveUse(self._root, removed_runs, others)
            used, self.unknown = use.digests, use.unknown
        else:
            used, self.unknown = local.used_digests(RootPaths(self._root), removed_runs, others)
        named = [
            each.digest for each in self._parts.values() if f"/{_FOLDERS[1]}/" in each.path and each.digest in used
        ]
        store = open_store(self._models)
        try:
            for found in in_parallel(lambda digest: files.read(store, digest).files, named):
                self._needed |= {part for each in found for part in each.parts}
        except CorruptObjectError as error:
            self.unknown = f"a version may need it, and its manifest is damaged: {error}".rstrip(".")
        self._needed |= {*named}

    def unused(self) -> list[Candidate]:
        found = [each for each in self.old() if each.digest not in self._needed]
        return [
            Candidate(kind=KIND, name=each.digest, path=each.path, size_bytes=each.size_bytes, age_s=each.age_s)
            for each in found
        ]

    def remove(self, item: Candidate) -> None:
        part = self._parts.get(item.path)
        if part is None:
            raise MissingError(item.path)
        if self.unknown or part.digest in self._needed:
            raise ChangedError(self.unknown or "a version needs it")
        if part.age_s < archives.JOB_SETTLED_S:
            raise ChangedError("a registration uses it")
        if part.version is None:
            _remove_file(Path(part.path), part)
            return
        with suppress(ConflictError):
            open_files(self._models, retry=SYNC_RETRY).delete(part.version)
            return
        raise ChangedError("a registration uses it")


def _remove_file(file: Path, part: _Part) -> None:
    hidden = file if _is_hidden(part.path) else file.with_name(f".{file.name}.{uuid.uuid4().hex[:8]}{_HIDDEN}")
    if hidden != file:
        file.rename(hidden)
        # A registration that touched it before the rename needs it; a later one writes it again.
        if hidden.lstat().st_mtime != part.changed:
            hidden.replace(file)
            raise ChangedError("a registration uses it")
    hidden.unlink()


def _is_hidden(path: str) -> bool:
    return path.endswith(_HIDDEN)


def unused(scan: PruneScan, removed_runs: frozenset[str]) -> list[Candidate]:
    """Return the parts and manifests that nothing needs once `removed_runs` (paths or URLs) are removed."""
    parts = ModelParts(scan.paths.root, removed_runs, scan.others, scan.now)
    found = parts.unused()
    if parts.unknown and found:
        scan.skip(scan.paths.models, parts.unknown)
        return []
    return found
