"""Old runs and unused archives of a root in a bucket. Ages are measured by the service's clock.

Every object is removed only in the version that was checked. A run's plan is removed first: what remains without a plan is
not a run. A resume writes a record and then reads the plan; a removal deletes the plan and then looks for new records.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from ... import ids
from ...errors import (
    AlreadyExistsError,
    ConflictError,
    CorruptObjectError,
    CorruptRunError,
    MissingError,
    StoreError,
)
from ...records.events import fold, parse, status_records
from ...records.sync.index import SYNC_RETRY
from ...spec.layout import RootPaths, RunPaths
from ...spec.plan import Plan
from ...status import State, Status
from ...storage.registry import Files, open_files, open_store
from . import archives
from .archives import MAX_RECORD_BYTES, MAX_RECORDS, ArchiveKind, OtherRecords
from .local import NOT_OURS, SETTLED_S, Candidate, ChangedError, PrunePlan, PruneScan, needs_upload

if TYPE_CHECKING:
    from ...storage.gcs.requests import ObjectInfo

_THREADS = 16
_KEYS = RunPaths("")
# Errors that damaged or foreign records cause.
_MALFORMED = (ValueError, LookupError, TypeError, AttributeError, RecursionError)
_T = TypeVar("_T")
_R = TypeVar("_R")


@dataclass(frozen=True, kw_only=True)
class _RunListing:
    """One listing of a run's directory; the status, None if unknown; and why the run must stay."""

    objects: Sequence[ObjectInfo]
    now: float
    status: Status | None = None
    why: str = ""

    @property
    def age_s(self) -> float:
        # The time of an answer is in whole seconds, those of objects are not.
        return max(0.0, self.now - max((each.changed for each in self.objects), default=self.now))

    def named(self, name: str) -> ObjectInfo | None:
        return next((each for each in self.objects if each.name == name), None)

    def item(self, kind: str, url: str) -> Candidate:
        size_bytes, state = sum(each.size for each in self.objects), self.status.state.value if self.status else ""
        name = url.rpartition("/")[2]
        return Candidate(kind=kind, name=name, path=url, size_bytes=size_bytes, age_s=self.age_s, state=state)


def old_runs(scan: PruneScan) -> tuple[list[Candidate], set[str]]:
    """Return the old runs and the remains of interrupted removals, and the ids of all runs in the bucket."""
    files = _files(scan.paths.root)
    folders, other = files.folder("runs")
    submitted = {name.split("/")[1]: time for name, time in files.matching("runs/*/plan.json").items()}
    for name in other:
        scan.skip(f"{scan.paths.runs}/{name}", NOT_OURS)
    runs = sorted((run for run in submitted if ids.is_run_id(run)), key=lambda run: (submitted[run], run), reverse=True)
    found, readable = [], 0
    for run, listing in zip(runs, _each(lambda run: _check(files, run, scan.local), runs), strict=True):
        url = scan.paths.run(run).url
        readable += listing.status is not None
        old = readable > scan.keep and listing.age_s >= scan.older_than_s
        why = listing.why or scan.others.why(run)
        if why and (old or listing.status is None):
            scan.skip(url, why)
        elif listing.status is not None and old:
            found.append(listing.item("run", url))
    for folder in folders:
        if folder not in submitted or not ids.is_run_id(folder):
            found += _remains(files, scan, folder)
    return found, set(runs)


def _check(files: Files, run: str, local: str) -> _RunListing:
    """Return the listing of a run with its status; `local` is this machine's folder for the root, "" for none."""
    listing = _list(files, run)
    if listing.named(f"runs/{run}/{_KEYS.plan}") is None:
        return listing
    try:
        status = _status(files, run, listing)
        why = _unknown_end(files, run) if status.state is State.LOST else ""
    except MissingError:
        # A concurrent removal deletes the plan first.
        listing = _list(files, run)
        removed = listing.named(f"runs/{run}/{_KEYS.plan}") is None
        return listing if removed else replace(listing, why="it changed during the check")
    except (CorruptRunError, CorruptObjectError, *_MALFORMED) as error:
        return replace(listing, why=f"its records are damaged: {error}".rstrip("."))
    if not status.state.terminal:
        why = f"the run is {status.state.value}"
    elif local and needs_upload(RootPaths(local).run(run)):
        why = "this machine has not uploaded all of it: podlift wait uploads the rest"
    return replace(listing, status=status, why=why)


def _list(files: Files, run: str) -> _RunListing:
    objects, now = files.versions(f"runs/{run}/")
    return _RunListing(objects=objects, now=now)


def _status(files: Files, run: str, listing: _RunListing) -> Status:
    """Fold the records. A run without a final record counts as lost if nothing has changed for an hour.

    Heartbeats are written every ten seconds, but a disconnected machine may come back.
    """
    start = f"runs/{run}/{_KEYS.events}/"
    names = status_records([each.name.removeprefix(start) for each in listing.objects if each.name.startswith(start)])
    if not names:
        raise CorruptRunError("there are none")
    events = [parse(name, bytes(files.read(start + name))) for name in names]
    return fold(events, supervisor_alive=listing.age_s < SETTLED_S)


def _unknown_end(files: Files, run: str) -> str:
    """Return why a run without a final record may still be running, "" if it cannot."""
    name = f"runs/{run}/{_KEYS.plan}"
    plan = Plan.from_json(bytes(files.read(name)), name)
    if plan.capabilities.supervised_here:
        return ""
    return f"it has no final record, and only {plan.backend} knows whether it is still going"


def _remains(files: Files, scan: PruneScan, folder: str) -> list[Candidate]:
    """Return the remains of an interrupted removal, which deletes the records last: they identify it."""
    url, listing = f"{scan.paths.runs}/{folder}", _list(files, folder)
    if not ids.is_run_id(folder) or not any(each.name.startswith(_last(folder)) for each in listing.objects):
        scan.skip(url, NOT_OURS)
        return []
    return [listing.item("remains", url)] if listing.age_s >= SETTLED_S else []


def _last(run: str) -> tuple[str, ...]:
    return (f"runs/{run}/{_KEYS.events}/", f"runs/{run}/{_KEYS.heartbeat}")


def remove_run(item: Candidate, plan: PrunePlan) -> None:
    files = _files(plan.root)
    listing = _check(files, item.name, plan.local)
    plan_object = listing.named(f"runs/{item.name}/{_KEYS.plan}")
    if plan_object is None:
        raise MissingError(item.path)
    if listing.status is None or listing.why:
        raise ChangedError(listing.why)
    if listing.age_s < plan.older_than_s:
        raise ChangedError("it has changed")
    text = bytes(files.read(plan_object.name))
    deleted_here = files.delete(plan_object)
    again = _list(files, item.name)
    # A concurrent removal may have deleted objects; only new ones count as a change.
    if {*again.objects} - {*listing.objects}:
        if deleted_here:
            with suppress(AlreadyExistsError):
                open_store(item.path, retry=SYNC_RETRY).put_new(_KEYS.plan, [text])
        raise ChangedError("it has changed")
    _delete_all(files, item.name, again)


def remove_remains(item: Candidate, plan: PrunePlan) -> None:
    files = _files(plan.root)
    listing = _list(files, item.name)
    if listing.named(f"runs/{item.name}/{_KEYS.plan}") is not None or listing.age_s < SETTLED_S:
        raise ChangedError("it has changed")
    _delete_all(files, item.name, listing)


def _delete_all(files: Files, run: str, listing: _RunListing) -> None:
    for last in (False, True):
        _each(files.delete, [each for each in listing.objects if each.name.startswith(_last(run)) is last])


def unused_archives(scan: PruneScan, runs: Collection[str]) -> list[Candidate]:
    """Return the bundles, runtimes and entrypoints that are unused once `runs` (URLs) are removed."""
    use = ArchiveUse(scan.paths.root, runs, scan.others)
    for name in use.strange:
        scan.skip(f"{scan.paths.root}/{name}", NOT_OURS)
    found = [item for item in use.old() if item.name not in use.digests]
    if use.unknown and found:
        for folder in sorted({item.path.rpartition("/")[0] for item in found}):
            scan.skip(folder, use.unknown)
        return []
    return found


class ArchiveUse:
    """The archives of a root, and the digests that its other files name, read in this order.

    A submit touches what it needs before it writes its plan, or creates its job: either that is read here, or the archive has
    another version. Files of the runs in `removed_runs` (URLs) do not count.
    """

    def __init__(self, root: str, removed_runs: Collection[str], others: OtherRecords) -> None:
        self._root, self._files = root, _files(root)
        self._objects: dict[str, tuple[ArchiveKind, ObjectInfo]] = {}
        self.strange: list[str] = []
        for folder, kind in archives.FOLDERS.items():
            objects, self._now = self._files.versions(f"{folder}/")
            for each in objects:
                digest = kind.digest(each.name.removeprefix(f"{folder}/"))
                if digest:
                    self._objects[f"{root}/{each.name}"] = kind, each
                elif not each.name.endswith("/"):
                    self.strange.append(each.name)
        self.digests = {*others.names}
        self.unknown = others.unknown  # why no archive may be removed
        self._read(removed_runs)

    def old(self) -> list[Candidate]:
        """Return the archives that no submit may be about to need."""
        found = []
        for url, (kind, each) in self._objects.items():
            age_s = max(0.0, self._now - each.changed)
            if age_s >= _settled_s(kind):
                name = kind.digest(url.rpartition("/")[2])
                found.append(Candidate(kind=kind.kind, name=name, path=url, size_bytes=each.size, age_s=age_s))
        return found

    def _read(self, removed_runs: Collection[str]) -> None:
        patterns = ["runs/*/plan.json", "runs/*/plans/*.json"]
        if any(item.kind != "bundle" for item in self.old()):
            patterns.append("runs/*/jobs/*.json")
        names = [name for pattern in patterns for name in self._files.matching(pattern)]
        wanted = [name for name in names if f"{self._root}/{'/'.join(name.split('/')[:2])}" not in removed_runs]
        for name, found in zip(wanted, _each(self._digests_in, wanted), strict=True):
            self.digests |= found or set()
            must = "/jobs/" not in name or name.endswith(".launch_spec.json")
            if found is not None and not found and must:
                self.unknown = f"it is unknown what '{self._root}/{name}' needs. Repair or remove it first"

    def _digests_in(self, name: str) -> set[str] | None:
        try:
            return archives.digests(bytes(self._files.read(name)))
        except MissingError:
            return None

    def remove(self, item: Candidate) -> None:
        if item.path not in self._objects:
            raise MissingError(item.path)
        kind, found = self._objects[item.path]
        if self.unknown or item.name in self.digests:
            raise ChangedError(self.unknown or "a run or a record needs it")
        if max(0.0, self._now - found.changed) >= _settled_s(kind):
            with suppress(ConflictError):  # touched since the listing
                self._files.delete(found)
                return
        raise ChangedError("a submit uses it")


def _settled_s(kind: ArchiveKind) -> float:
    return archives.JOB_SETTLED_S if kind.of_jobs else SETTLED_S


def other_records(root: str) -> OtherRecords:
    """Return what the JSON files in other folders of a root name."""
    files = _files(root)
    names: list[str] = []
    for folder in files.folder("")[0]:
        if folder in archives.KNOWN:
            continue
        try:
            records = (each.name for each in files.list(f"{folder}/", suffix=".json") if each.size <= MAX_RECORD_BYTES)
            names += islice(records, MAX_RECORDS - len(names) + 1)
        except StoreError as error:
            return archives.unreadable(f"{root}/{folder}", error)
        if len(names) > MAX_RECORDS:
            return archives.too_many(f"{root}/{folder}")

    def read(name: str) -> set[str]:
        with suppress(MissingError):
            return archives.named(bytes(files.read(name)))
        return set()

    try:
        found = _each(read, names)
    except StoreError as error:
        return archives.unreadable(root, error)
    return OtherRecords({word: f"{root}/{name}" for name, words in zip(names, found, strict=True) for word in words})


def _files(root: str) -> Files:
    return open_files(root, retry=SYNC_RETRY)


def _each(call: Callable[[_T], _R], items: Iterable[_T]) -> list[_R]:
    """Call for all items concurrently; after all have ended, raise the first failure."""
    with ThreadPoolExecutor(_THREADS) as pool:
        waiting = [pool.submit(call, item) for item in items]
    return [each.result() for each in waiting]
