"""A root in a folder of this machine. Links are not followed, and nothing is removed below something that is mounted.

Runs and archives are first renamed to hidden names: a partly removed run never looks like a damaged one, and an archive that
a submit uses at that moment is put back.
"""

from __future__ import annotations

import os
import re
import stat
import uuid
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path

from ... import api
from ...errors import PodliftError
from ...job.layout import RunPaths
from ...process.janitor_watch import end_leftovers
from ...records.recorder import has_ended
from ...run import listed_status
from ...storage import file_systems, folders
from . import root
from .root import ARCHIVES, KNOWN, MAX_RECORD_BYTES, Archive, Candidate, ChangedError, Place, PrunedRoot

_HIDDEN = re.compile(r"\..+\.[0-9a-f]{8}\.removed")


class FolderRoot(PrunedRoot):
    def runs(self) -> Iterator[tuple[Candidate, str]]:
        dated = []
        for path, info in entries(self, Path(self.url, "runs")):
            if stat.S_ISLNK(info.st_mode):
                self.skip(path, "it is a link, and links are not followed")
            elif stat.S_ISDIR(info.st_mode) and not path.name.startswith("."):
                dated.append((_submitted(path, info), path))
        for _, path in sorted(dated, reverse=True):
            item, why = self.run(path)
            # Without a plan it may belong to a current submit, or may have been removed meanwhile.
            if item.state or _has_plan(path) or item.age_s >= root.SETTLED_S:
                yield item, why

    def run(self, path: Path) -> tuple[Candidate, str]:
        """Return a run, without a state if it cannot be read, and why it must stay whatever its age."""
        state, why = _state(path)
        return replace(measured("run", path, self), state=state), why

    def remains(self) -> Iterator[Candidate]:
        for folder in ("runs", *ARCHIVES):
            for path, info in entries(self, Path(self.url, folder)):
                # It was renamed when its ctime changed, and an archive may be put back soon after that.
                if _HIDDEN.fullmatch(path.name) and (
                    folder == "runs" or self.limits.now - info.st_ctime >= root.SETTLED_S
                ):
                    yield measured("remains", path, self)

    def archives(self) -> list[Archive]:
        return [
            Archive(item=replace(measured(kind.kind, path, self), name=digest), folder=folder, version=info.st_mtime_ns)
            for folder, kind in ARCHIVES.items()
            for path, info in entries(self, Path(self.url, folder))
            if (digest := kind.digest(path.name)) and stat.S_ISREG(info.st_mode)
        ]

    def records(self) -> Iterator[tuple[str, bytes]]:
        def refuse(error: OSError) -> None:
            raise error

        for folder, _ in folders.entries(Path(self.url)):
            if folder.name in KNOWN or not folder.is_dir() or not self._is_searched(folder):
                continue
            for here, inside, names in os.walk(folder, onerror=refuse):
                inside[:] = [name for name in inside if self._is_searched(Path(here, name))]
                for path in (Path(here, name) for name in names if name.endswith(".json")):
                    info = path.lstat()
                    if stat.S_ISLNK(info.st_mode):
                        self._is_searched(path)
                    elif stat.S_ISREG(info.st_mode) and info.st_size <= MAX_RECORD_BYTES:
                        yield str(path), path.read_bytes()

    def _is_searched(self, path: Path) -> bool:
        """Return whether a folder may hold records; OSError for a link out of the root: its records are unknown."""
        if path.name.startswith("."):
            return False
        if path.is_symlink() and Path(self.url).resolve() not in path.resolve().parents:
            raise OSError(f"{str(path)!r} is a link out of the root, and links are not followed")
        return not path.is_symlink()

    def run_records(self, removed_runs: Collection[str]) -> list[tuple[str, bytes]]:
        records: list[tuple[str, bytes]] = []
        try:
            # Damaged and hidden runs and links count too: reading is harmless, and an unused archive costs little.
            for path, _ in folders.entries(Path(self.url, "runs")):
                plan = Path(RunPaths(str(path)).plan)
                if str(path) in removed_runs or not plan.exists():
                    continue
                inside = [*folders.entries(plan.with_name("plans")), *folders.entries(plan.with_name("jobs"))]
                # Reading a named pipe would block.
                for file in [plan, *(file for file, _ in inside if file.suffix == ".json")]:
                    records.append((str(file), file.read_bytes() if file.is_file() else b""))
        except FileNotFoundError:
            return self.run_records(removed_runs)  # a run was removed meanwhile
        return records

    def remove_run(self, item: Candidate) -> None:
        folder = Path(item.path)
        before = folder.lstat()
        if not stat.S_ISDIR(before.st_mode):
            raise ChangedError("it is no longer a folder")
        again, why = self.run(folder)
        folder.lstat()  # raises if it is gone, which `run` reports as unreadable
        if why or again.age_s < self.limits.older_than_s:
            raise ChangedError(why or "it has changed")
        self.end(folder)
        _remove_folder(folder, before)

    def end(self, folder: Path) -> None:
        """End the processes that a killed supervisor has left of a run."""
        paths = RunPaths(str(folder))
        try:
            if not has_ended(paths):
                end_leftovers(paths)
        except PodliftError:
            folder.lstat()  # raises if another process has removed it meanwhile
            raise

    def remove_remains(self, item: Candidate) -> None:
        if file_systems.inside(item.path, file_systems.mounts()):
            raise ChangedError("something is mounted in it")
        folders.remove(Path(item.path))

    def remove_archive(self, archive: Archive) -> None:
        file = Path(archive.item.path)
        hidden = file.with_name(f".{file.name}.{uuid.uuid4().hex[:8]}.removed")
        file.rename(hidden)
        # A submit that touched it before the rename relies on it; a later one writes it again.
        if hidden.lstat().st_mtime_ns != archive.version:
            hidden.replace(file)
            raise ChangedError("a submit or a registration uses it")
        hidden.unlink()


def entries(place: Place, folder: Path) -> list[folders.FolderEntry]:
    """Return the content of a folder; one that cannot be listed is skipped."""
    try:
        return folders.entries(folder)
    except OSError as error:
        if all(skipped.path != str(folder) for skipped in place.skipped):
            place.skip(folder, f"it cannot be listed: {error.strerror or error}")
        return []


def measured(kind: str, path: Path, place: Place) -> Candidate:
    size_bytes, changed = folders.extent(path)
    age_s = place.limits.now - changed
    return Candidate(kind=kind, name=path.name, path=str(path), size_bytes=size_bytes, age_s=age_s)


def _submitted(run: Path, info: os.stat_result) -> tuple[float, str]:
    try:
        return Path(RunPaths(str(run)).plan).stat().st_mtime, run.name
    except OSError:
        return info.st_mtime, run.name


def _has_plan(run: Path) -> bool:
    try:
        os.lstat(RunPaths(str(run)).plan)
    except FileNotFoundError:
        return False
    except OSError:
        pass  # not accessible, which is different from absent
    return True


def _state(folder: Path) -> tuple[str, str]:
    """Return the state of a run ("" if it is not readable), and why it must stay whatever its age."""
    plan = Path(RunPaths(str(folder)).plan)
    try:
        # Reading a named pipe would block.
        if plan.exists() and not plan.is_file():
            return "", "its plan.json is not a file"
        status = listed_status(api.attach(folder))
        owner = folder.lstat().st_uid
    except Exception as error:  # one damaged folder must not hide the others
        return "", str(error).rstrip(".") or repr(error)
    state = status.state.value
    if not status.state.terminal:
        return state, f"the run is {state}"
    if os.geteuid() not in (0, owner):
        return state, "it belongs to another user"
    mounted = file_systems.inside(str(folder), file_systems.mounts())
    return state, f"something is mounted in it, at {mounted[0]!r}" if mounted else ""


def _remove_folder(folder: Path, before: os.stat_result) -> None:
    """Hide and remove a folder, if it is the one that was looked at."""
    hidden = folder.with_name(f".{folder.name}.{uuid.uuid4().hex[:8]}.removed")
    folder.rename(hidden)
    if not os.path.samestat(before, hidden.lstat()):
        hidden.rename(folder)
        raise ChangedError("it was exchanged for another folder")
    folders.remove(hidden)
