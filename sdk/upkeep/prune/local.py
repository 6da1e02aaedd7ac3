"""What can be pruned on this machine: old runs, unused archives, stale caches, and its folders for roots in buckets.

Such a folder holds this machine's own runs before their upload, and copies of others. It is removed only if everything in it
is in the bucket too.
"""

from __future__ import annotations

import os
import re
import stat
import uuid
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

from ... import api, ids
from ...clock import SystemClock
from ...errors import PodliftError
from ...process import venv
from ...process.janitor_watch import end_leftovers
from ...process.supervision import is_supervised
from ...records.recorder import has_ended, is_owned, is_uploaded
from ...records.sync import push
from ...run import seen
from ...spec.layout import RootPaths, RunPaths
from ...status import Status
from ...storage import file_systems, folders
from . import archives
from .archives import ArchiveKind, OtherRecords

# A submit writes or touches its bundle before the plan that refers to it: younger bundles may be needed soon.
SETTLED_S = 3600.0
NOT_OURS = "it is not podlift's"
# States of a copy: its run is not in the bucket any more, or is removed from there at the same time.
GONE, GOING = "gone", "going"
_HIDDEN_RUN = re.compile(r"\..+\.[0-9a-f]{8}\.pruned")


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A thing to remove; the names of the fields are keys of `podlift prune --json`."""

    # "run", "bundle", "runtime", "entrypoint", "copy" (of a run in a bucket), "cache", "environment", or "remains" (of an
    # interrupted removal)
    kind: str
    name: str  # the run's id, the archive's digest, or the file's name
    path: str  # or a gs:// URL
    size_bytes: int
    age_s: float  # since the last change; for an environment, since its last use
    # Of a run; for a copy "gone" if its run is not in the bucket, "going" if it is removed together with it.
    state: str = ""


@dataclass(frozen=True, kw_only=True)
class Skipped:
    path: str
    why: str


@dataclass(frozen=True, kw_only=True)
class PrunePlan:
    """What `remove` would remove, and what only a person can decide about."""

    root: str
    now: float  # unix time of the search, in seconds
    older_than_s: float
    items: tuple[Candidate, ...]
    skipped: tuple[Skipped, ...]
    local: str = ""  # this machine's folder for a root in a bucket

    @property
    def size_bytes(self) -> int:
        return sum(item.size_bytes for item in self.items)


@dataclass(frozen=True, kw_only=True)
class PruneResult:
    """What was removed, what was kept because it has changed, and a message for each failure."""

    items: tuple[Candidate, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    problems: tuple[str, ...] = ()


class ChangedError(Exception):
    """A candidate must stay after all; the message says why."""


@dataclass(frozen=True, kw_only=True)
class PruneScan:
    paths: RootPaths
    older_than_s: float
    keep: int
    now: float
    local: str = ""
    removed_runs: frozenset[str] = frozenset()  # ids of the candidates in the bucket
    others: OtherRecords = field(default_factory=OtherRecords)
    skipped: list[Skipped] = field(default_factory=list)

    def skip(self, path: Path | str, why: str) -> None:
        self.skipped.append(Skipped(path=str(path), why=why))

    def entries(self, folder: Path) -> list[folders.FolderEntry]:
        """Return the content of a folder; one that cannot be listed is skipped."""
        try:
            return folders.entries(folder)
        except OSError as error:
            self.skip(folder, f"it cannot be listed: {error.strerror or error}")
            return []


def old_runs(scan: PruneScan) -> list[Candidate]:
    """Return the ended runs that are old enough and not among the newest, and the remains of interrupted removals."""
    found, readable, table = [], 0, file_systems.mounts()
    everything = scan.entries(Path(scan.paths.runs))
    for path, info in _newest_first(scan, everything):
        status, why = _status(path, table)
        if status is None:
            # Without a plan it may belong to a current submit, or may have been removed meanwhile.
            if path.exists() and (_has_plan(path) or scan.now - info.st_mtime >= SETTLED_S):
                scan.skip(path, why)
            continue
        readable += 1
        if readable <= scan.keep:
            continue
        item = replace(_item("run", path, scan), state=status.state.value)
        if item.age_s < scan.older_than_s:
            continue
        why = why or scan.others.why(path.name)
        if why:
            scan.skip(path, why)
        else:
            found.append(item)
    return found + [_item("remains", path, scan) for path, info in everything if _is_hidden(path, info)]


def _item(kind: str, path: Path, scan: PruneScan, info: os.stat_result | None = None) -> Candidate:
    """Return a candidate, measured by `info` if it counts only as a file."""
    size_bytes, changed = (info.st_size, info.st_mtime) if info else folders.extent(path)
    return Candidate(kind=kind, name=path.name, path=str(path), size_bytes=size_bytes, age_s=scan.now - changed)


def _newest_first(scan: PruneScan, everything: list[folders.FolderEntry]) -> list[folders.FolderEntry]:
    """Return the folders that may be runs, in the order of `sdk.runs`."""
    found = []
    for path, info in everything:
        if stat.S_ISLNK(info.st_mode):
            scan.skip(path, "it is a link, and links are not followed")
        elif stat.S_ISDIR(info.st_mode) and not path.name.startswith("."):
            found.append((path, info))
        elif not _is_hidden(path, info):
            scan.skip(path, NOT_OURS)
    return sorted(found, key=lambda entry: (_submitted(*entry), entry[0].name), reverse=True)


def _is_hidden(path: Path, info: os.stat_result) -> bool:
    return stat.S_ISDIR(info.st_mode) and _HIDDEN_RUN.fullmatch(path.name) is not None


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
        pass  # not accessible, which is different from absent
    return True


def _status(folder: Path, table: list[file_systems.Mount]) -> tuple[Status | None, str]:
    """Return the status of a run (None if it is not readable), and why it must stay whatever its age."""
    plan = Path(RunPaths(str(folder)).plan)
    try:
        # Reading a named pipe would block.
        if plan.exists() and not plan.is_file():
            return None, "its plan.json is not a file"
        status = seen(api.attach(folder))
        owner = folder.lstat().st_uid
    except Exception as error:  # one damaged folder must not hide the others
        return None, str(error).rstrip(".") or repr(error)
    if not status.state.terminal:
        return status, f"the run is {status.state.value}"
    if os.geteuid() not in (0, owner):
        return status, "it belongs to another user"
    mounted = file_systems.inside(str(folder), table)
    return status, f"something is mounted in it, at {mounted[0]!r}" if mounted else ""


def remove_run(item: Candidate, plan: PrunePlan) -> None:
    folder = Path(item.path)
    before = folder.lstat()
    if not stat.S_ISDIR(before.st_mode):
        raise ChangedError("it is no longer a folder")
    status, why = _status(folder, file_systems.mounts())
    folder.lstat()  # raises if it is gone, which `_status` reports as unreadable
    if status is None or why:
        raise ChangedError(why)
    if plan.now - folders.extent(folder)[1] < plan.older_than_s:
        raise ChangedError("it has changed")
    paths = RunPaths(str(folder))
    try:
        if not has_ended(paths):
            end_leftovers(paths)
    except PodliftError:
        folder.lstat()  # raises if another prune has removed it meanwhile
        raise
    _remove_folder(folder, before)


def _remove_folder(folder: Path, before: os.stat_result) -> None:
    """Hide and remove a folder, if it is the one that was looked at."""
    hidden = folder.with_name(f".{folder.name}.{uuid.uuid4().hex[:8]}.pruned")
    folder.rename(hidden)
    if not os.path.samestat(before, hidden.lstat()):
        hidden.rename(folder)
        raise ChangedError("it was exchanged for another folder")
    folders.remove(hidden)


def remove_remains(item: Candidate, plan: PrunePlan) -> None:
    if file_systems.inside(item.path, file_systems.mounts()):
        raise ChangedError("something is mounted in it")
    folders.remove(Path(item.path))


def unused_archives(scan: PruneScan, runs: Collection[str]) -> list[Candidate]:
    """Return the archives that are unused once `runs` (paths) are removed, and the remains of interrupted removals."""
    found, remains = [], []
    for name, kind in archives.FOLDERS.items():
        for path, info in scan.entries(Path(scan.paths.root, name)):
            is_file = stat.S_ISREG(info.st_mode)
            item = _item(kind.kind, path, scan, info)
            if kind.is_hidden(path.name) and is_file:
                # It was renamed when its ctime changed, and may be put back soon after that.
                hidden_s = scan.now - info.st_ctime
                if hidden_s >= SETTLED_S:
                    remains.append(replace(item, kind="remains", age_s=hidden_s))
            elif item.age_s < _settled_s(kind):
                continue
            elif (digest := kind.digest(path.name)) and is_file:
                found.append(replace(item, name=digest))
            else:
                scan.skip(path, "an interrupted submit left it" if path.name.endswith(".part") else NOT_OURS)
    # Read after the archives: a concurrent submit has touched its bundle by now, or its plan is readable.
    used, unknown = used_digests(scan.paths, runs, scan.others)
    if unknown and found:
        for folder in sorted({str(Path(item.path).parent) for item in found}):
            scan.skip(folder, unknown)
        found = []
    return [item for item in found if item.name not in used] + remains


def _settled_s(kind: ArchiveKind) -> float:
    return archives.JOB_SETTLED_S if kind.of_jobs else SETTLED_S


def used_digests(paths: RootPaths, removed_runs: Collection[str], others: OtherRecords) -> tuple[set[str], str]:
    """Return the digests that records and all runs but some need, and why no archive may be removed ("" if some may)."""
    used = {*others.names}
    where = paths.runs
    try:
        # Damaged and hidden runs and links count too: reading is harmless, and an unused archive costs little.
        for path, _ in folders.entries(Path(paths.runs)):
            plan = Path(RunPaths(str(path)).plan)
            where = str(plan)
            if str(path) in removed_runs or not plan.exists():
                continue
            # Digests of single files match as well, but are not those of bundles. A resume with other code has its own plan.
            plans = _digests_in([plan, *_json_files(plan.with_name("plans"))])
            if not plans:
                raise OSError("it has no digest")
            used |= plans | _digests_in(_json_files(plan.with_name("jobs")))
    except FileNotFoundError:
        return used_digests(paths, removed_runs, others)  # a run was removed meanwhile
    except OSError as error:
        why = error.strerror or error
        return used, f"it is unknown what {where!r} needs ({why}). Repair or remove it first"
    return used, others.unknown


def _json_files(folder: Path) -> list[Path]:
    """Return the JSON files in a folder; OSError if it cannot be listed, where a glob would find none."""
    return [path for path, _ in folders.entries(folder) if path.suffix == ".json"]


def _digests_in(files: Iterable[Path]) -> set[str]:
    return set().union(*(archives.digests(one.read_bytes()) for one in files if one.is_file()))


def other_records(root: Path) -> OtherRecords:
    """Return what the JSON files in other folders of a root name. Links and hidden folders are not podlift's."""
    names: dict[str, str] = {}
    try:
        others = [path for path, info in folders.entries(root) if stat.S_ISDIR(info.st_mode)]
        for folder in others:
            if folder.name in archives.KNOWN or folder.name.startswith("."):
                continue
            records = list(islice(_records(folder), archives.MAX_RECORDS + 1))
            if len(records) > archives.MAX_RECORDS:
                return archives.too_many(str(folder))
            for record in records:
                names.update(dict.fromkeys(archives.named(record.read_bytes()), str(record)))
    except OSError as error:
        return archives.unreadable(str(error.filename or root), error.strerror or error)
    return OtherRecords(names)


def _records(folder: Path) -> Iterator[Path]:
    def refuse(error: OSError) -> None:
        raise error

    for here, inside, files in os.walk(folder, onerror=refuse):
        inside[:] = [name for name in inside if not name.startswith(".")]
        for path in (Path(here, name) for name in files if name.endswith(".json")):
            info = path.lstat()
            if stat.S_ISREG(info.st_mode) and info.st_size <= archives.MAX_RECORD_BYTES:
                yield path


def remove_archive(item: Candidate, plan: PrunePlan, used: Collection[str], unknown: str) -> None:
    if unknown or item.name in used:
        raise ChangedError(unknown or "a run or a record needs it")
    file = Path(item.path)
    kind = archives.FOLDERS[file.parent.name]
    hidden = file.with_name(f".{item.name}.{uuid.uuid4().hex[:8]}.pruned{kind.suffix}")
    file.rename(hidden)
    # A submit that touched it before the rename relies on it; a later one writes it again.
    if plan.now - hidden.lstat().st_mtime < _settled_s(kind):
        hidden.replace(file)
        raise ChangedError("a submit uses it")
    hidden.unlink()


def old_caches(scan: PruneScan, cache: Path) -> list[Candidate]:
    """Return the cached files and environments that were not used for long."""
    found = []
    for path, info in [*scan.entries(cache / "files"), *scan.entries(cache / "runtime")]:
        item = _item("cache", path, scan, info)
        if path.suffix in (".json", ".tar", ".part") and stat.S_ISREG(info.st_mode) and item.age_s >= scan.older_than_s:
            found.append(item)
    try:
        environments = venv.unused(cache, unused_for_s=scan.older_than_s, now=scan.now)
    except OSError as error:
        scan.skip(cache, f"its environments cannot be listed: {error.strerror or error}")
        environments = []
    return found + [_item("environment", path, scan) for path in environments]


def remove_cache(item: Candidate, plan: PrunePlan) -> None:
    path = Path(item.path)
    if plan.now - path.lstat().st_mtime < plan.older_than_s:
        raise ChangedError("it was used again")
    folders.remove(path)


def remove_environment(item: Candidate, plan: PrunePlan) -> None:
    path = Path(item.path)
    if path not in venv.unused(path.parent.parent, unused_for_s=plan.older_than_s, now=plan.now):
        raise ChangedError("it was used again")
    if not venv.remove(path):
        raise ChangedError("a run uses it, or a part of it could not be removed")


# --- Copies of runs in buckets ---------------------------------------------------------------------------------------


def old_copies(scan: PruneScan, cache: Path, existing: Collection[str]) -> list[Candidate]:
    """Return the old copies of every root in a bucket, and the archives that only they need.

    `existing` are the ids of the runs in the bucket of the searched root; those of other roots are unknown.
    """
    found = []
    for root in _roots(scan, cache / "gs"):
        known = existing if str(root) == scan.local else None
        inside = replace(scan, paths=RootPaths(str(root)), others=OtherRecords())
        mine = [item for path, info in scan.entries(root / "runs") for item in _candidates(inside, path, info, known)]
        found += mine + unused_archives(inside, {item.path for item in mine})
    return found


def _roots(scan: PruneScan, folder: Path) -> Iterator[Path]:
    """Yield the folders of roots, which are as deep as their prefix in the bucket."""
    inside = [path for path, info in scan.entries(folder) if stat.S_ISDIR(info.st_mode)]
    if folder / "runs" in inside:
        yield folder
    for path in inside:
        if folder.name != "runs" or not (ids.is_run_id(path.name) or path.name.startswith(".")):
            yield from _roots(scan, path)


def _candidates(
    scan: PruneScan, path: Path, info: os.stat_result, existing: Collection[str] | None
) -> Iterator[Candidate]:
    item = _item("copy", path, scan)
    if _is_hidden(path, info):
        yield replace(item, kind="remains")
    if not (stat.S_ISDIR(info.st_mode) and ids.is_run_id(path.name)):
        return
    if path.name in scan.removed_runs and existing is not None:
        item = replace(item, state=GOING)
    # The run of a current submit is not in the bucket yet.
    elif existing is not None and path.name not in existing and item.age_s >= SETTLED_S:
        item = replace(item, state=GONE)
    if not item.state and item.age_s < scan.older_than_s:
        return
    why = _why_not(item, scan.older_than_s)
    if why:
        scan.skip(path, why)
    else:
        yield item


def _why_not(item: Candidate, older_than_s: float) -> str:
    """Return why a copy must stay, "" if it need not."""
    paths = RunPaths(item.path)
    mounted = file_systems.inside(item.path, file_systems.mounts())
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
    if item.state == GONE and item.age_s >= older_than_s:
        return ""
    return "it is not uploaded completely: podlift wait uploads the rest"


def needs_upload(paths: RunPaths) -> bool:
    """True for a run that this machine owns and has not uploaded completely."""
    return os.path.isdir(paths.events) and is_owned(paths) and not is_uploaded(paths)


def remove_copy(item: Candidate, plan: PrunePlan) -> None:
    folder = Path(item.path)
    before = folder.lstat()
    age_s = plan.now - folders.extent(folder)[1]
    why = _why_not(replace(item, age_s=age_s), plan.older_than_s)
    if why or (not item.state and age_s < plan.older_than_s):
        raise ChangedError(why or "it was used again")
    _remove_folder(folder, before)
