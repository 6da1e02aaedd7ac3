"""Old runs and unused bundles of a root in a bucket. Ages are measured by the service's clock.

Every object is removed only in the version that was checked. A run's plan is removed first: what remains without a plan is
not a run. A resume writes a record and then reads the plan; a removal deletes the plan and then looks for new records.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from ... import ids
from ...errors import AlreadyExistsError, ConflictError, CorruptObjectError, CorruptRunError, MissingError
from ...records.events import fold, parse, status_records
from ...records.sync.index import SYNC_RETRY
from ...spec.layout import RootPaths, RunPaths
from ...spec.plan import Plan
from ...status import State, Status
from ...storage.gcs.files import BucketFiles
from ...storage.gcs.store import GcsStore
from .local import NOT_OURS, SETTLED_S, Candidate, ChangedError, PrunePlan, PruneScan, needs_upload

if TYPE_CHECKING:
    from ...storage.gcs.requests import ObjectInfo

_THREADS = 16
_BUNDLE = re.compile(r"bundles/([0-9a-f]{64})\.tar")
_DIGEST = re.compile(rb"[0-9a-f]{64}")
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
        if listing.why and (old or listing.status is None):
            scan.skip(url, listing.why)
        elif listing.status is not None and old:
            found.append(listing.item("run", url))
    for folder in folders:
        if folder not in submitted or not ids.is_run_id(folder):
            found += _remains(files, scan, folder)
    return found, set(runs)


def _check(files: BucketFiles, run: str, local: str) -> _RunListing:
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


def _list(files: BucketFiles, run: str) -> _RunListing:
    objects, now = files.versions(f"runs/{run}/")
    return _RunListing(objects=objects, now=now)


def _status(files: BucketFiles, run: str, listing: _RunListing) -> Status:
    """Fold the records. A run without a final record counts as lost if nothing has changed for an hour.

    Heartbeats are written every ten seconds, but a disconnected machine may come back.
    """
    start = f"runs/{run}/{_KEYS.events}/"
    names = status_records([each.name.removeprefix(start) for each in listing.objects if each.name.startswith(start)])
    if not names:
        raise CorruptRunError("there are none")
    events = [parse(name, bytes(files.read(start + name))) for name in names]
    return fold(events, supervisor_alive=listing.age_s < SETTLED_S)


def _unknown_end(files: BucketFiles, run: str) -> str:
    """Return why a run without a final record may still be running, "" if it cannot."""
    name = f"runs/{run}/{_KEYS.plan}"
    plan = Plan.from_json(bytes(files.read(name)), name)
    if plan.capabilities.supervised_here:
        return ""
    return f"it has no final record, and only {plan.backend} knows whether it is still going"


def _remains(files: BucketFiles, scan: PruneScan, folder: str) -> list[Candidate]:
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
                GcsStore(item.path.partition("://")[2], retry=SYNC_RETRY).put_new(_KEYS.plan, [text])
        raise ChangedError("it has changed")
    _delete_all(files, item.name, again)


def remove_remains(item: Candidate, plan: PrunePlan) -> None:
    files = _files(plan.root)
    listing = _list(files, item.name)
    if listing.named(f"runs/{item.name}/{_KEYS.plan}") is not None or listing.age_s < SETTLED_S:
        raise ChangedError("it has changed")
    _delete_all(files, item.name, listing)


def _delete_all(files: BucketFiles, run: str, listing: _RunListing) -> None:
    for last in (False, True):
        _each(files.delete, [each for each in listing.objects if each.name.startswith(_last(run)) is last])


def unused_bundles(scan: PruneScan, runs: Collection[str]) -> list[Candidate]:
    """Return the bundles that are unused once `runs` (URLs) are removed."""
    use = BundleUse(scan.paths.root, runs)
    found = []
    for each in use.objects.values():
        age_s, match = max(0.0, use.now - each.changed), _BUNDLE.fullmatch(each.name)
        url = f"{scan.paths.root}/{each.name}"
        if match is None and not each.name.endswith("/"):
            scan.skip(url, NOT_OURS)
        elif match and age_s >= SETTLED_S and match[1] not in use.digests:
            found.append(Candidate(kind="bundle", name=match[1], path=url, size_bytes=each.size, age_s=age_s))
    if use.unknown and found:
        scan.skip(RootPaths(scan.paths.root).bundle("").rpartition("/")[0], use.unknown)
        return []
    return found


class BundleUse:
    """The bundles of a root, and the digests that plans need, read in this order.

    A submit touches its bundle before it writes its plan: either the plan is read here, or the bundle has another version.
    Plans of the runs in `removed_runs` (URLs) do not count.
    """

    def __init__(self, root: str, removed_runs: Collection[str]) -> None:
        self._files = _files(root)
        objects, self.now = self._files.versions("bundles/")
        self.objects = {each.name: each for each in objects}
        self.digests: set[str] = set()
        self.unknown = ""  # why no bundle may be removed
        plans = [*self._files.matching("runs/*/plan.json"), *self._files.matching("runs/*/plans/*.json")]
        wanted = [name for name in plans if f"{root}/{'/'.join(name.split('/')[:2])}" not in removed_runs]
        for name, found in zip(wanted, _each(self._digests_in, wanted), strict=True):
            self.digests |= found or set()
            if found is not None and not found:
                self.unknown = f"it is unknown which bundle '{root}/{name}' needs. Repair or remove it first"

    def _digests_in(self, plan: str) -> set[str] | None:
        try:
            return {digest.decode() for digest in _DIGEST.findall(bytes(self._files.read(plan)))}
        except MissingError:
            return None

    def remove(self, item: Candidate) -> None:
        found = self.objects.get(f"bundles/{item.name}.tar")
        if found is None:
            raise MissingError(item.path)
        if self.unknown or item.name in self.digests:
            raise ChangedError(self.unknown or "a run needs it")
        if max(0.0, self.now - found.changed) >= SETTLED_S:
            with suppress(ConflictError):  # touched since the listing
                self._files.delete(found)
                return
        raise ChangedError("a submit uses it")


def _files(root: str) -> BucketFiles:
    return BucketFiles(root, retry=SYNC_RETRY)


def _each(call: Callable[[_T], _R], items: Iterable[_T]) -> list[_R]:
    """Call for all items concurrently; after all have ended, raise the first failure."""
    with ThreadPoolExecutor(_THREADS) as pool:
        waiting = [pool.submit(call, item) for item in items]
    return [each.result() for each in waiting]
