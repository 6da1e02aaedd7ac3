"""The removals from podlift's cache: files and environments without a use for long, and copies of runs in buckets."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from ... import ids
from ...clock import SystemClock
from ...errors import PodliftError
from ...job.layout import RunPaths
from ...process import venv
from ...process.janitor_watch import is_supervised
from ...records.recorder import is_owned, is_uploaded
from ...records.sync import push
from ...storage import file_systems, folders
from .folder import FolderRoot, entries, measured
from .root import Candidate, ChangedError, Limits, Place


class Cache(Place):
    """The files and environments of the cache."""

    def candidates(self) -> Iterator[Candidate]:
        for folder in ("files", "runtime"):
            for path, info in entries(self, Path(self.url, folder)):
                item = measured("cache", path, self)
                is_cache_file = path.suffix in (".json", ".tar", ".part") and stat.S_ISREG(info.st_mode)
                if is_cache_file and item.age_s >= self.limits.older_than_s:
                    yield item
        try:
            yield from [measured("environment", path, self) for path in self._unused()]
        except OSError as error:
            self.skip(self.url, f"its environments cannot be listed: {error.strerror or error}")

    def remove(self, item: Candidate) -> None:
        path = Path(item.path)
        if item.kind == "environment":
            if path not in self._unused() or not venv.remove(path):
                raise ChangedError("it was used again, or a part of it could not be removed")
        elif self.limits.now - path.lstat().st_mtime < self.limits.older_than_s:
            raise ChangedError("it was used again")
        else:
            folders.remove(path)

    def _unused(self) -> list[Path]:
        return venv.unused(Path(self.url), unused_for_s=self.limits.older_than_s, now=self.limits.now)


class CopiesRoot(FolderRoot):
    """This machine's folder for a root in a bucket: its own runs before their upload, and copies of others.

    A run goes from it only by its age, and if everything in it is in the bucket too. A folder without a run's name is no
    copy: below a bucket with the prefix `runs`, it is a folder of the real root.
    """

    def runs(self) -> Iterator[tuple[Candidate, str]]:
        return ((item, why) for item, why in super().runs() if ids.is_run_id(item.name))

    def run(self, path: Path) -> tuple[Candidate, str]:
        return replace(measured("copy", path, self), state="uploaded"), _why_not(path)

    def end(self, folder: Path) -> None:
        """Do nothing: a copy has no processes, and one that was uploaded has ended."""


def copies(cache: Path, limits: Limits) -> list[CopiesRoot]:
    """Return the folders of all roots in buckets, which are as deep as their prefix in the bucket."""
    roots = []
    for here, inside, _ in os.walk(cache / "gs"):
        if "runs" in inside:
            roots.append(CopiesRoot(here, replace(limits, keep=0)))
        if os.path.basename(here) == "runs":
            inside[:] = [name for name in inside if not (ids.is_run_id(name) or name.startswith("."))]
    return roots


def needs_upload(paths: RunPaths) -> bool:
    """True for a run that this machine owns and has not uploaded completely."""
    return os.path.isdir(paths.events) and is_owned(paths) and not is_uploaded(paths)


def _why_not(path: Path) -> str:
    """Return why a copy must stay, "" if it need not."""
    paths = RunPaths(str(path))
    mounted = file_systems.inside(str(path), file_systems.mounts())
    if mounted:
        return f"something is mounted in it, at {mounted[0]!r}"
    try:
        if not needs_upload(paths):
            return ""
        if is_supervised(paths, SystemClock()):
            return "the run is still going"
        if push.is_uploading(paths):
            return "its files are being uploaded"
    except (PodliftError, OSError) as error:
        return str(error).rstrip(".")
    return "it is not uploaded completely: podlift wait uploads the rest"
