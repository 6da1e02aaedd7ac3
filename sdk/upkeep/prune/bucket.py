"""Old runs, and bundles that no plan refers to, of a root in a bucket. Ages are by the service's own clock.

A run's plan goes first: without it nobody takes the rest for a run. Every object is removed as the very one that was looked
at. Who resumes a run leaves a record and then looks for the plan; who removes it takes the plan and then looks for records.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeVar

from ... import ids
from ...errors import AlreadyExistsError, ConflictError, CorruptObjectError, CorruptRunError, MissingError
from ...records.events import fold, parse, status_records
from ...records.sync.push import PATIENCE
from ...spec.layout import RootPaths, RunPaths
from ...status import State, Status
from ...storage.gcs.files import BucketFiles, ObjectVersion
from ...storage.gcs.store import GcsStore
from . import copies
from .items import NOT_OURS, SETTLED_S, Item, Look, Pruning, StaysError

_THREADS = 16
_BUNDLE = re.compile(r"bundles/([0-9a-f]{64})\.tar")
_DIGEST = re.compile(rb"[0-9a-f]{64}")
_KEYS = RunPaths("")
# What reading a record of another hand may raise.
_NONSENSE = (ValueError, LookupError, TypeError, AttributeError, RecursionError)
_T = TypeVar("_T")
_R = TypeVar("_R")


@dataclass(frozen=True, kw_only=True)
class _Seen:
    """A run's directory as one listing shows it; how the run is, None where nobody can tell, and why it must stay."""

    objects: Sequence[ObjectVersion]
    now: float
    status: Status | None = None
    why: str = ""

    @property
    def age_s(self) -> float:
        # The service's times are fractions of seconds, but for the one that an answer comes with.
        return max(0.0, self.now - max((each.changed for each in self.objects), default=self.now))

    @property
    def size_bytes(self) -> int:
        return sum(each.size for each in self.objects)

    def named(self, name: str) -> ObjectVersion | None:
        return next((each for each in self.objects if each.name == name), None)


def old(look: Look) -> tuple[list[Item], set[str]]:
    """Return the runs that would go, what removals that were cut short have left, and the ids of all runs that are there.

    Raises:
        StoreError: the bucket cannot be read.
    """
    files = _files(look.paths.root)
    folders, strange = files.folder("runs")
    made = {name.split("/")[1]: time for name, time in files.matching("runs/*/plan.json").items()}
    for name in strange:
        look.leave(f"{look.paths.runs}/{name}", NOT_OURS)
    newest_first = sorted((run for run in made if ids.is_run_id(run)), key=lambda run: (made[run], run), reverse=True)
    found, readable = [], 0
    for run, judged in zip(newest_first, _each(lambda run: _judge(files, run, look.local), newest_first), strict=True):
        url = look.paths.run(run).url
        readable += judged.status is not None
        if judged.status is None and judged.why:
            look.leave(url, judged.why)
        elif judged.status is not None and readable > look.keep and judged.age_s >= look.older_than_s:
            if judged.why:
                look.leave(url, judged.why)
            else:
                found.append(_item("run", url, judged, judged.status.state.value))
    without = [folder for folder in folders if folder not in made or not ids.is_run_id(folder)]
    found += [item for item in (_remains(files, look, folder) for folder in without) if item is not None]
    return found, set(newest_first)


def _item(kind: str, url: str, seen: _Seen, state: str = "") -> Item:
    name = url.rpartition("/")[2]
    return Item(kind=kind, name=name, path=url, size_bytes=seen.size_bytes, age_s=seen.age_s, state=state)


def _judge(files: BucketFiles, run: str, local: str) -> _Seen:
    """Return what is there of a run, how it is doing, and why it must stay whatever its age.

    Args:
        files: of the root.
        run: its id.
        local: the folder of this machine for this root; "" for none.
    """
    seen = _look_at(files, run)
    if seen.named(f"runs/{run}/{_KEYS.plan}") is None:
        return seen
    try:
        status = _status(files, run, seen)
        why = _of_others(files, run) if status.state is State.LOST else ""
    except MissingError:
        # Whoever removes it has taken the plan before.
        seen = _look_at(files, run)
        gone = seen.named(f"runs/{run}/{_KEYS.plan}") is None
        return seen if gone else replace(seen, why="it has changed while it was looked at")
    except (CorruptRunError, CorruptObjectError, *_NONSENSE) as error:
        return replace(seen, why=f"its records are damaged: {error}".rstrip("."))
    if not status.state.terminal:
        why = f"the run is {status.state.value}"
    elif local and copies.is_unbrought(RootPaths(local).run(run)):
        why = "this machine has not brought all of it there yet: podlift wait does"
    return replace(seen, status=status, why=why)


def _look_at(files: BucketFiles, run: str) -> _Seen:
    objects, now = files.kept(f"runs/{run}/")
    return _Seen(objects=objects, now=now)


def _status(files: BucketFiles, run: str, seen: _Seen) -> Status:
    """Return what the records say; without a verdict a run counts as lost when nothing of it has changed for an hour.

    A heartbeat is written every ten seconds, and a machine that was cut off may come back.
    """
    start = f"runs/{run}/{_KEYS.events}/"
    names = status_records([each.name.removeprefix(start) for each in seen.objects if each.name.startswith(start)])
    if not names:
        raise CorruptRunError("they are gone")
    events = [parse(name, bytes(files.read(start + name))) for name in names]
    return fold(events, supervisor_alive=seen.age_s < SETTLED_S)


def _of_others(files: BucketFiles, run: str) -> str:
    """Say why nobody here knows that a run without a verdict is lost; "" if that is known."""
    backend = json.loads(bytes(files.read(f"runs/{run}/{_KEYS.plan}")))["backend"]
    return "" if backend == "local" else f"it has no verdict, and only {backend} knows whether it goes on"


def _remains(files: BucketFiles, look: Look, folder: str) -> Item | None:
    """Return what a removal that was cut short has left of a run; it takes the records last, so that they tell."""
    url, seen = f"{look.paths.runs}/{folder}", _look_at(files, folder)
    if not ids.is_run_id(folder) or not any(each.name.startswith(_last_of(folder)) for each in seen.objects):
        look.leave(url, NOT_OURS)
        return None
    return _item("remains", url, seen) if seen.age_s >= SETTLED_S else None


def _last_of(run: str) -> tuple[str, ...]:
    return (f"runs/{run}/{_KEYS.events}/", f"runs/{run}/{_KEYS.heartbeat}")


def remove(item: Item, pruning: Pruning) -> None:
    """Remove a run, unless it has changed since it was found.

    Raises:
        StaysError: it has.
        MissingError: it is gone.
        StoreError: the bucket refuses.
    """
    files = _files(pruning.root)
    seen = _judge(files, item.name, pruning.local)
    plan = seen.named(f"runs/{item.name}/{_KEYS.plan}")
    if plan is None:
        raise MissingError(item.path)
    if seen.status is None or seen.why:
        raise StaysError(seen.why)
    if seen.age_s < pruning.older_than_s:
        raise StaysError("something in it has changed")
    text = bytes(files.read(plan.name))
    first = files.delete(plan)
    again = _look_at(files, item.name)
    # Others may take a part of the work: what is less is no change.
    if {*again.objects} - {*seen.objects}:
        if first:
            with suppress(AlreadyExistsError):
                GcsStore(item.path.partition("://")[2], retry=PATIENCE).put_new(_KEYS.plan, [text])
        raise StaysError("something in it has changed")
    _remove_all(files, item.name, again)


def remove_remains(item: Item, pruning: Pruning) -> None:
    """Go on with a removal that was cut short.

    Raises:
        StaysError: it is a run again.
        StoreError: the bucket refuses.
    """
    files = _files(pruning.root)
    seen = _look_at(files, item.name)
    if seen.named(f"runs/{item.name}/{_KEYS.plan}") is not None or seen.age_s < SETTLED_S:
        raise StaysError("something in it has changed")
    _remove_all(files, item.name, seen)


def _remove_all(files: BucketFiles, run: str, seen: _Seen) -> None:
    for last in (False, True):
        _each(files.delete, [each for each in seen.objects if each.name.startswith(_last_of(run)) is last])


def unneeded(look: Look, going: Collection[str]) -> list[Item]:
    """Return the bundles that would go once some runs are gone.

    Args:
        look: the root and the rules.
        going: URLs of the runs.

    Raises:
        StoreError: the bucket cannot be read.
    """
    known = Bundles(look.paths.root, going)
    found = []
    for each in known.objects.values():
        age_s, match, url = (
            max(0.0, known.now - each.changed),
            _BUNDLE.fullmatch(each.name),
            f"{look.paths.root}/{each.name}",
        )
        if match is None and not each.name.endswith("/"):
            look.leave(url, NOT_OURS)
        elif match and age_s >= SETTLED_S and match[1] not in known.needed:
            found.append(Item(kind="bundle", name=match[1], path=url, size_bytes=each.size, age_s=age_s))
    if known.unknown and found:
        look.leave(RootPaths(look.paths.root).bundle("").rpartition("/")[0], known.unknown)
        return []
    return found


class Bundles:
    """The bundles of a root in a bucket, and which of them the plans need: looked at in this order.

    A submit touches its bundle before it brings its plan: either the plan is seen here, or the bundle is another one by then.

    Args:
        root: gs://BUCKET/PREFIX.
        going: URLs of runs that need none.

    Attributes:
        objects: the bundles by their name below the root.
        now: the service's unix time then.
        needed: digests.
        unknown: why no bundle can be spared, "" where that is not so.
    """

    def __init__(self, root: str, going: Collection[str]) -> None:
        self._files = _files(root)
        objects, self.now = self._files.kept("bundles/")
        self.objects = {each.name: each for each in objects}
        self.needed: set[str] = set()
        self.unknown = ""
        plans = [*self._files.matching("runs/*/plan.json"), *self._files.matching("runs/*/plans/*.json")]
        wanted = [name for name in plans if f"{root}/{'/'.join(name.split('/')[:2])}" not in going]
        for name, found in zip(wanted, _each(self._digests, wanted), strict=True):
            self.needed |= found or set()
            if found is not None and not found:
                self.unknown = f"nobody can tell which bundle '{root}/{name}' needs. Repair or remove it first"

    def _digests(self, plan: str) -> set[str] | None:
        """Return what may be the digest of a bundle; None for a plan that has gone meanwhile."""
        try:
            return {digest.decode() for digest in _DIGEST.findall(bytes(self._files.read(plan)))}
        except MissingError:
            return None

    def remove(self, item: Item) -> None:
        """Remove a bundle, unless somebody needs it by now.

        Raises:
            StaysError: somebody does.
            MissingError: it is gone.
            StoreError: the bucket refuses.
        """
        found = self.objects.get(f"bundles/{item.name}.tar")
        if found is None:
            raise MissingError(item.path)
        if self.unknown or item.name in self.needed:
            raise StaysError(self.unknown or "a run needs it")
        try:
            if max(0.0, self.now - found.changed) >= SETTLED_S:
                self._files.delete(found)
                return
        except ConflictError:
            pass  # touched since then
        raise StaysError("a submit has taken it up")


def _files(root: str) -> BucketFiles:
    return BucketFiles(root, retry=PATIENCE)


def _each(call: Callable[[_T], _R], items: Iterable[_T]) -> list[_R]:
    """Call for all at the same time; what fails does not stop the others, and the first failure is raised behind them."""
    with ThreadPoolExecutor(_THREADS) as pool:
        waiting = [pool.submit(call, item) for item in items]
    return [each.result() for each in waiting]
