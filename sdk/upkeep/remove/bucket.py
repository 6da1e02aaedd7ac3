"""Old runs and unused archives of a root in a bucket. Ages are measured by the service's clock.

Every object is removed only in the version that was checked. A run's plan is removed first: objects without a plan are
not a run. A resume writes a record and then reads the plan; a removal deletes the plan and then looks for new records.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, cast

from ... import ids
from ...errors import (
    AlreadyExistsError,
    ConflictError,
    CorruptObjectError,
    CorruptRunError,
    MissingError,
)
from ...job.layout import RootPaths, RunPaths
from ...job.plan import Plan
from ...records.events import fold, parse, status_records
from ...records.sync.index import SYNC_RETRY
from ...status import State, Status
from ...storage.parallel import in_parallel
from ...storage.registry import Files, open_files, open_store
from . import root
from .cache import needs_upload
from .root import ARCHIVES, KNOWN, MAX_RECORD_BYTES, Archive, Candidate, ChangedError, Limits, PrunedRoot

if TYPE_CHECKING:
    from ...storage.gcs.requests import ObjectInfo

_KEYS = RunPaths("")
# Errors that damaged or foreign records cause.
_MALFORMED = (ValueError, LookupError, TypeError, AttributeError, RecursionError)


@dataclass(frozen=True, kw_only=True)
class _RunListing:
    """One listing of a run's directory; the status, None if unknown; and why the run must stay."""

    objects: Sequence[ObjectInfo]
    now: float
    status: Status | None = None
    why: str = ""

    @property
    def age_s(self) -> float:
        # The time of an answer is in whole seconds, the times of objects are not.
        return max(0.0, self.now - max((info.changed for info in self.objects), default=self.now))

    def plan(self, run: str) -> ObjectInfo | None:
        return next((info for info in self.objects if info.name == f"runs/{run}/{_KEYS.plan}"), None)

    def item(self, kind: str, url: str) -> Candidate:
        size_bytes, state = sum(info.size for info in self.objects), self.status.state.value if self.status else ""
        name = url.rpartition("/")[2]
        return Candidate(kind=kind, name=name, path=url, size_bytes=size_bytes, age_s=self.age_s, state=state)


class BucketRoot(PrunedRoot):
    def __init__(self, url: str, limits: Limits, *, local: str = "") -> None:
        """`local` is this machine's folder for the root, "" for none."""
        super().__init__(url, limits)
        self._files = open_files(url, retry=SYNC_RETRY)
        self._local = local

    def runs(self) -> Iterator[tuple[Candidate, str]]:
        submitted = {name.split("/")[1]: time for name, time in self._files.matching("runs/*/plan.json").items()}
        runs = sorted((run for run in submitted if ids.is_run_id(run)), key=lambda run: (submitted[run], run))[::-1]
        for run, listing in zip(runs, in_parallel(self._check, runs), strict=True):
            yield listing.item("run", self._url(run)), listing.why

    def remains(self) -> Iterator[Candidate]:
        """Return the runs without a plan: a removal deletes the plan first, and the records, which identify them, last."""
        for run in self._files.folder("runs")[0]:
            if ids.is_run_id(run):
                listing = _list(self._files, run)
                is_identified = any(info.name.startswith(_last(run)) for info in listing.objects)
                if is_identified and listing.plan(run) is None and listing.age_s >= root.SETTLED_S:
                    yield listing.item("remains", self._url(run))

    def archives(self) -> list[Archive]:
        listed = []
        for folder, kind in ARCHIVES.items():
            objects, now = self._files.versions(f"{folder}/")
            for info in objects:
                if name := kind.digest(info.name.removeprefix(f"{folder}/")):
                    path, age_s = f"{self.url}/{info.name}", max(0.0, now - info.changed)
                    item = Candidate(kind=kind.kind, name=name, path=path, size_bytes=info.size, age_s=age_s)
                    listed.append(Archive(item=item, folder=folder, version=info))
        return listed

    def records(self) -> Iterator[tuple[str, bytes]]:
        names: list[str] = []
        for folder in self._files.folder("")[0]:
            if folder not in KNOWN:
                listed = self._files.list(f"{folder}/", suffix=".json")
                small = (info.name for info in listed if info.size <= MAX_RECORD_BYTES)
                names += islice(small, root.MAX_RECORDS + 1 - len(names))
        return self._read(names)

    def run_records(self, removed_runs: Collection[str]) -> Iterator[tuple[str, bytes]]:
        patterns = ("runs/*/plan.json", "runs/*/plans/*.json", "runs/*/jobs/*.json")
        names = [name for pattern in patterns for name in self._files.matching(pattern)]
        return self._read([name for name in names if self._url(name.split("/")[1]) not in removed_runs])

    def _read(self, names: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        """Yield the objects that still exist."""

        def read(name: str) -> bytes | None:
            with suppress(MissingError):
                return bytes(self._files.read(name))
            return None

        for name, data in zip(names, in_parallel(read, names), strict=True):
            if data is not None:
                yield f"{self.url}/{name}", data

    def remove_run(self, item: Candidate) -> None:
        files, listing = self._files, self._check(item.name)
        plan = listing.plan(item.name)
        if plan is None:
            raise MissingError(item.path)
        if listing.why or listing.age_s < self.limits.older_than_s:
            raise ChangedError(listing.why or "it has changed")
        text = bytes(files.read(plan.name))
        deleted_here = files.delete(plan)
        again = _list(files, item.name)
        # A concurrent removal may have deleted objects; only new ones count as a change.
        if {*again.objects} - {*listing.objects}:
            if deleted_here:
                with suppress(AlreadyExistsError):
                    open_store(item.path, retry=SYNC_RETRY).put_new(_KEYS.plan, [text])
            raise ChangedError("it has changed")
        _delete_all(files, item.name, again)

    def remove_remains(self, item: Candidate) -> None:
        listing = _list(self._files, item.name)
        if listing.plan(item.name) is not None or listing.age_s < root.SETTLED_S:
            raise ChangedError("it has changed")
        _delete_all(self._files, item.name, listing)

    def remove_archive(self, archive: Archive) -> None:
        with suppress(ConflictError):  # touched since the listing
            self._files.delete(cast("ObjectInfo", archive.version))
            return
        raise ChangedError("a submit or a registration uses it")

    def _url(self, run: str) -> str:
        return f"{self.url}/runs/{run}"

    def _check(self, run: str) -> _RunListing:
        """Return the listing of a run with its status."""
        files, listing = self._files, _list(self._files, run)
        if listing.plan(run) is None:
            return listing
        try:
            status = _status(files, run, listing)
            why = _unknown_end(files, run) if status.state is State.LOST else ""
        except MissingError:
            # A concurrent removal deletes the plan first.
            listing = _list(files, run)
            return listing if listing.plan(run) is None else replace(listing, why="it changed during the check")
        except (CorruptRunError, CorruptObjectError, *_MALFORMED) as error:
            return replace(listing, why=f"its records are damaged: {error}".rstrip("."))
        if not status.state.terminal:
            why = f"the run is {status.state.value}"
        elif self._local and needs_upload(RootPaths(self._local).run(run)):
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
    names = status_records([info.name.removeprefix(start) for info in listing.objects if info.name.startswith(start)])
    if not names:
        raise CorruptRunError("there are none")
    events = [parse(name, bytes(files.read(start + name))) for name in names]
    return fold(events, supervisor_alive=listing.age_s < root.SETTLED_S)


def _unknown_end(files: Files, run: str) -> str:
    """Return why a run without a final record may still be running, "" if it cannot."""
    name = f"runs/{run}/{_KEYS.plan}"
    plan = Plan.from_json(bytes(files.read(name)), name)
    if plan.capabilities.supervised_here:
        return ""
    return f"it has no final record, and only {plan.backend} knows whether it is still going"


def _last(run: str) -> tuple[str, ...]:
    return (f"runs/{run}/{_KEYS.events}/", f"runs/{run}/{_KEYS.heartbeat}")


def _delete_all(files: Files, run: str, listing: _RunListing) -> None:
    for last in (False, True):
        in_parallel(files.delete, [info for info in listing.objects if info.name.startswith(_last(run)) is last])
