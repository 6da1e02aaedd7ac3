"""The removal of a version: its number goes into `champion.json`, by compare-and-swap; then its evidence and record.

Because the moves of the champion are in the same object, a promotion and a removal cannot both win. The number is not used
again. The files go with a later `podlift remove`, unless another version has them.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..errors import ConflictError, CorruptObjectError, InputError, MissingError
from ..storage.parallel import in_parallel
from ..storage.store import Store
from . import evidence, files
from .records import VERSION_KEY, ChampionRecord, VersionRecord, champion_key, decoded, encoded, version_key

if TYPE_CHECKING:
    from .models import Model, ModelVersion


@dataclass(frozen=True, kw_only=True)
class Removal:
    """What a removal frees."""

    number: int
    run: str  # which `podlift remove` need not keep for this version any more
    size_bytes: int | None  # of the files that no other version has; None if a damaged version does not tell its files


def remove(model: Model, version: ModelVersion, *, force: bool) -> Removal:
    """Remove a version; without `force`, not one that a rollback could return to."""
    freed = Removal(number=version.number, run=version.record.run, size_bytes=_freed(model.store, version))
    while True:
        record, generation = model.record()
        _check(model, record, version.number, force=force)
        if version.number in record.removed:
            break  # an earlier removal was interrupted, or its reply was lost
        new_record = replace(record, removed=(*record.removed, version.number))
        with suppress(ConflictError):
            model.store.swap(champion_key(model.name), [encoded(new_record)], expected=generation)
    keys = [stat.key for stat in model.store.list(evidence.key_of(model.name, version.number))]
    # Its record last: without it, a removal that was interrupted could not be repeated.
    for key in (*keys, version_key(model.name, version.number)):
        with suppress(MissingError):
            model.store.delete(key)
    return freed


def _check(model: Model, record: ChampionRecord, number: int, *, force: bool) -> None:
    if number == record.champion:
        raise InputError(
            f"Version {number} is the champion of {model.name!r}, which cannot be removed. Nothing was changed. Next: podlift "
            f"models promote {model.name} VERSION, or podlift models promote {model.name} --previous; then remove it."
        )
    if number in record.predecessors and not force:
        raise InputError(
            f"Version {number} was the champion of {model.name!r}, and a rollback could return to it. Nothing was changed. "
            f"Next: podlift models remove {model.name} {number} --force, after which none can."
        )


def _freed(store: Store, version: ModelVersion) -> int | None:
    """Return the size of the parts of a version that no other version of any model has."""
    # A damaged version can be removed, and others do not keep one from being removed.
    with suppress(CorruptObjectError):
        return _size_of_own_parts(store, version)
    return None


def _size_of_own_parts(store: Store, version: ModelVersion) -> int:
    own = {key: size for file in version.files() for key, size in files.sizes(file).items()}
    others = set[str]()
    for stat in store.list("records/"):
        match = VERSION_KEY.fullmatch(stat.key)
        if match and (match[1], int(match[2])) != (version.record.model, version.number):
            with suppress(MissingError):
                others.add(decoded(VersionRecord, bytes(store.get(stat.key)), stat.key).manifest)
    for named in in_parallel(lambda digest: files.read(store, digest).files, sorted(others)):
        for file in named:
            for part in file.parts:
                own.pop(part, None)
    return sum(own.values())
