"""Rank 0 only: which checkpoints exist, and the removal of checkpoints that the policy does not keep.

A commit is removed before its data, so that no commit ever points to removed data. A kill in between leaves garbage, which the
collector of a later attempt finds. The collector only reads epochs that are over, and only after its own epoch has a commit:
anything that a writer of an older epoch may still acknowledge is then older than that commit.
"""

from __future__ import annotations

from dataclasses import replace

from ..errors import (
    ConflictError,
    CorruptCheckpointError,
    CorruptObjectError,
    FutureFormatError,
    MissingError,
    StoreError,
)
from ..storage.store import Stat, Store
from . import names, restore
from .manifest import Manifest
from .opening import OpenStore, check_lease
from .policy import Committed, best_of, metric_of, retention

_COLLECT_EVERY_S = 3600.0


class Retention:
    """The checkpoints of a store as one attempt knows them: found or acknowledged by it."""

    def __init__(self, opened: OpenStore) -> None:
        self._store, self._opening, self._policy = opened.store, opened.opening, opened.policy
        self._clock = opened.env.clock
        self._commits: list[Committed] | None = None
        self._restored = self._opening.commit
        self._opened = opened
        self._collected_s: float | None = None
        self._skipped: set[str] = set()
        self._wrote = ""

    @property
    def parent(self) -> str | None:
        """The commit that this attempt restored or wrote last."""
        return self._wrote or self._opening.commit

    def best_with(self, manifest: Manifest) -> dict[str, object] | None:
        """Return the manifest's entry for the best checkpoint, this one included."""
        # Read before the commit even without a metric: reading it later would count this commit twice.
        index = self._index()
        metric = metric_of(self._policy)
        if metric is None:
            return None
        name, mode = metric
        commits = [*index, Committed(key=manifest.key, metrics=manifest.metrics)]
        best = best_of(commits, self._policy)
        value = next((item.metrics[name] for item in commits if item.key == best), None)
        return {"metric": name, "mode": mode, "value": value, "commit": best} if best else None

    def committed(self, manifest: Manifest, stat: Stat) -> None:
        self._index().append(_index_entry(manifest, stat.generation))
        self._wrote = manifest.key

    def skipped(self, checkpoint_id: names.CheckpointId) -> None:
        """Note a save that this rank skipped; the other tasks may still write their parts of it."""
        self._skipped = {*self._skipped, names.folder(checkpoint_id, self._opening.nonce)}

    def tidy(self) -> None:
        """Remove checkpoints by the policy, and from time to time the leftovers of killed attempts. May be retried."""
        self._retain()
        now = self._clock.monotonic()
        if self._collected_s is None or now - self._collected_s >= _COLLECT_EVERY_S:
            self._collected_s = now
            collect(self._store, self._opening.epoch)
        if self._skipped:
            # One listing for all of them; a part written later is found next time.
            for folder in self._skipped & {stat.key.rpartition("/")[0] + "/" for stat in self._store.list(names.DATA)}:
                delete_folder(self._store, folder)

    def _retain(self) -> None:
        index = self._index()
        pins = set(restore.pins(self._store).values()) | {item.key for item in index if item.future}
        victims = retention(index, pins, self._policy, self._restored)
        # Tasks without a connection may begin an hour later than this one, and with the same checkpoint.
        apart = len(self._opened.info.tasks) > 1 and self._opened.env.apart()
        if self._restored and not apart and retention(index, pins, self._policy, None) != victims:
            # The restored checkpoint is verified; it is removed only once a newer one is verified too.
            restore.verify(self._store, index[-1].key, self._opening.run_id)
            self._restored = None
            victims = retention(index, pins, self._policy, None)
        for key in victims:
            check_lease(self._store, self._opening)
            item = next(item for item in index if item.key == key)
            _delete(self._store, key, item.generation)
            index.remove(item)
            # By name: listing each folder would cost as much again.
            for data in item.data:
                _delete(self._store, data, None)
            if item.damaged:
                _delete(self._store, names.note(key), None)

    def _index(self) -> list[Committed]:
        if self._commits is None:
            notes = {stat.key for stat in self._store.list(names.QUARANTINE)}
            self._commits = [self._read(stat, notes) for stat in restore.commits_of(self._store)]
        return self._commits

    def _read(self, stat: Stat, notes: set[str]) -> Committed:
        try:
            commit = _index_entry(restore.read_manifest(self._store, stat.key, self._opening.run_id), stat.generation)
        except FutureFormatError:
            return Committed(key=stat.key, generation=stat.generation, future=True)
        except (CorruptCheckpointError, CorruptObjectError, MissingError):
            return Committed(key=stat.key, generation=stat.generation, damaged=True)
        return replace(commit, damaged=names.note(stat.key) in notes)


def collect(store: Store, epoch: int) -> int:
    """Remove the data of earlier epochs that no commit refers to. Only for the holder of the lease, after its first commit."""
    dead: dict[str, list[Stat]] = {}
    for stat in store.list(names.DATA):
        parts = names.parse_data_key(stat.key)
        if parts and parts[1] < epoch:
            dead.setdefault(parts[0], []).append(stat)
    if not dead:
        return 0
    used: set[str] = set()
    for stat in restore.commits_of(store):
        checkpoint_id = names.parse_commit(stat.key)
        try:
            used.update(_folders(restore.read_manifest(store, stat.key)))
        except MissingError:
            continue
        except (CorruptCheckpointError, CorruptObjectError, FutureFormatError):
            # It is unknown which of that step's data it refers to: all of it stays as long as the commit does.
            used |= {folder for folder in dead if checkpoint_id and names.folder_is_of(folder, checkpoint_id)}
    garbage = [stat for folder, stats in dead.items() if folder not in used for stat in stats]
    for stat in garbage:
        _delete(store, stat.key, None)
    return len(garbage)


def delete_folder(store: Store, folder: str) -> None:
    for stat in list(store.list(folder)):
        _delete(store, stat.key, None)


def _delete(store: Store, key: str, generation: str | None) -> None:
    try:
        store.delete(key, generation=generation)
    except MissingError:
        # Already removed, perhaps by our own request, with a lost reply.
        return
    except ConflictError:
        raise StoreError(f"{key!r} of {store.url} was overwritten by another process; it is not removed.") from None


def _index_entry(manifest: Manifest, generation: str) -> Committed:
    receipts = (names.receipt(folder, rank) for folder in _folders(manifest) for rank in range(1, manifest.ranks))
    return Committed(
        key=manifest.key,
        metrics=manifest.metrics,
        ends=manifest.ends,
        failure=manifest.reason == "failure",
        generation=generation,
        data=(*(file.key for file in manifest.files), *receipts),
    )


def _folders(manifest: Manifest) -> tuple[str, ...]:
    return tuple(sorted({file.key.rpartition("/")[0] + "/" for file in manifest.files}))
