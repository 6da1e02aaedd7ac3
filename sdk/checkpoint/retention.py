"""Rank 0 only: which checkpoints there are, and the removal of what nobody needs any more.

A commit is removed before its data, so that no commit ever points to removed data; a kill in between leaves garbage, which the
collector of a later attempt finds. It looks only at epochs that are over, and only once its own epoch has a commit: whatever a
writer of an older epoch may still acknowledge is then older than that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from ..clock import Clock
from ..errors import (
    ConflictError,
    CorruptCheckpointError,
    CorruptObjectError,
    FutureFormatError,
    MissingError,
    StoreError,
)
from ..storage.store import Stat, Store
from . import catalog, names, restore
from .lease import check
from .manifest import Manifest
from .opening import Opening
from .policy import Committed, Policy, best_of, retention

_COLLECT_EVERY_S = 3600.0


@dataclass(frozen=True)
class _Known:
    committed: Committed
    generation: str
    data: tuple[str, ...]
    future: bool = False


class Keeper:
    """The checkpoints of a store as one attempt knows them: those that it found, and those that it has acknowledged.

    Args:
        store: where they are.
        opening: of the attempt.
        policy: what to keep.
        clock: what time it is.
        log: takes sentences.
    """

    def __init__(
        self, store: Store, opening: Opening, policy: Policy, clock: Clock, log: Callable[[str], None]
    ) -> None:
        self._store = store
        self._opening = opening
        self._policy = policy
        self._clock = clock
        self._log = log
        self._known: list[_Known] | None = None
        self._restored = opening.commit
        self._collected_s: float | None = None
        self._skipped: set[str] = set()

    def best_with(self, manifest: Manifest) -> dict[str, Any] | None:
        """Return what the manifest says of the best checkpoint, this one included."""
        # Looked at before the commit, even where no metric asks for it: what is found later would be counted twice.
        index = self._index()
        if self._policy.metric is None:
            return None
        name, mode = self._policy.metric
        known = [*(item.committed for item in index), Committed(key=manifest.key, metrics=manifest.metrics)]
        best = best_of(known, self._policy)
        value = next((item.metrics[name] for item in known if item.key == best), None)
        return {"metric": name, "mode": mode, "value": value, "commit": best} if best else None

    def committed(self, manifest: Manifest, stat: Stat) -> None:
        """Note a commit that was acknowledged."""
        self._index().append(_known(manifest, stat.generation))

    def skipped(self, place: names.Place) -> None:
        """Note a save of ours that nobody will ever commit; other tasks may write their parts of it nevertheless."""
        self._skipped = {*self._skipped, names.folder(place, self._opening.nonce)}

    def tidy(self) -> None:
        """Remove what the policy does not keep, and now and then what killed attempts have left.

        Raises:
            FencedError: the lease is somebody else's; nothing was removed.
            StoreError: something could not be removed; it will be tried again.
        """
        self._retain()
        now = self._clock.monotonic()
        if self._collected_s is None or now - self._collected_s >= _COLLECT_EVERY_S:
            self._collected_s = now
            collect(self._store, self._opening.epoch)
        if self._skipped:
            # Listed once for all of them; a part that comes later is found the next time.
            for folder in self._skipped & {stat.key.rpartition("/")[0] + "/" for stat in self._store.list(names.DATA)}:
                delete_folder(self._store, folder)

    def _retain(self) -> None:
        index = self._index()
        pins = set(catalog.pins(self._store).values()) | {item.committed.key for item in index if item.future}
        commits = [item.committed for item in index]
        victims = retention(commits, pins, self._policy, self._restored)
        if self._restored and retention(commits, pins, self._policy, None) != victims:
            # The one that we began with is proven; it goes only when a newer one is proven too.
            restore.verify(self._store, index[-1].committed.key, self._opening.run_id)
            self._restored = None
            victims = retention(commits, pins, self._policy, None)
        for key in victims:
            check(self._store, self._opening.lease())
            item = next(item for item in index if item.committed.key == key)
            _delete(self._store, key, item.generation)
            index.remove(item)
            # By name: a list of each folder, and of notes where none is known, would cost as much again.
            for data in item.data:
                _delete(self._store, data, None)
            if item.committed.damaged:
                _delete(self._store, names.note(key), None)

    def _index(self) -> list[_Known]:
        if self._known is None:
            notes = {stat.key for stat in self._store.list(names.QUARANTINE)}
            self._known = [self._look(stat, notes) for stat in restore.commits_of(self._store)]
        return self._known

    def _look(self, stat: Stat, notes: set[str]) -> _Known:
        try:
            manifest = restore.read_manifest(self._store, stat.key, self._opening.run_id)
            known = _known(manifest, stat.generation)
        except FutureFormatError:
            return _Known(Committed(key=stat.key), stat.generation, (), future=True)
        except (CorruptCheckpointError, CorruptObjectError, MissingError):
            return _Known(Committed(key=stat.key, damaged=True), stat.generation, ())
        if names.note(stat.key) in notes:
            known = replace(known, committed=replace(known.committed, damaged=True))
        return known


def collect(store: Store, epoch: int) -> int:
    """Remove the data of epochs before this one that no commit mentions; return how many objects went.

    Only for a writer that has the lease and has committed in its epoch.

    Raises:
        StoreError: the store cannot be read, or something could not be removed.
    """
    dead: dict[str, list[Stat]] = {}
    for stat in store.list(names.DATA):
        found = names.folder_of(stat.key)
        if found and found[1] < epoch:
            dead.setdefault(found[0], []).append(stat)
    if not dead:
        return 0
    used: set[str] = set()
    for stat in restore.commits_of(store):
        place = names.place_of(stat.key)
        try:
            used.update(_folders(restore.read_manifest(store, stat.key)))
        except MissingError:
            continue
        except (CorruptCheckpointError, CorruptObjectError, FutureFormatError):
            # Nobody can tell which of that step's data is meant: all of it stays for as long as the commit does.
            used |= {folder for folder in dead if place and names.folder_is_of(folder, place)}
    garbage = [stat for folder, stats in dead.items() if folder not in used for stat in stats]
    for stat in garbage:
        _delete(store, stat.key, None)
    return len(garbage)


def delete_folder(store: Store, folder: str) -> None:
    """Remove everything in a data folder."""
    for stat in list(store.list(folder)):
        _delete(store, stat.key, None)


def _delete(store: Store, key: str, generation: str | None) -> None:
    try:
        store.delete(key, generation=generation)
    except MissingError:
        # Gone already, perhaps by our own request whose reply was lost.
        return
    except ConflictError:
        raise StoreError(f"{key!r} of {store.url} was overwritten by somebody else; it is left alone.") from None


def _known(manifest: Manifest, generation: str) -> _Known:
    committed = Committed(
        key=manifest.key, metrics=manifest.metrics, keep=manifest.keep, failure=manifest.reason == "failure"
    )
    receipts = (names.receipt(folder, rank) for folder in _folders(manifest) for rank in range(1, manifest.ranks))
    return _Known(committed, generation, (*(file.key for file in manifest.files), *receipts))


def _folders(manifest: Manifest) -> tuple[str, ...]:
    return tuple(sorted({file.key.rpartition("/")[0] + "/" for file in manifest.files}))
