"""The checkpoints of a store, for people: listed, verified, pinned."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from ..errors import (
    AlreadyExistsError,
    CheckpointError,
    ConflictError,
    CorruptObjectError,
    FutureFormatError,
    InputError,
    MissingError,
    nearest,
)
from ..storage.store import Store
from . import names, restore
from .envelope import unwrap, wrap
from .fields import Fields
from .manifest import Manifest

_PIN = re.compile(r"[a-z0-9]([a-z0-9_-]{0,39})")


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One checkpoint.

    Attributes:
        key: its commit.
        step, epoch, serial: its place in the order of all; `epoch` counts attempts that wrote, not passes over the data.
        created_at: unix time; None if its manifest cannot be read.
        size: bytes; None likewise.
        reason: "interval", "preempt", "final", "manual" or "failure"; None likewise.
        pinned: the names of its pins.
        quarantined: why it is not restored; None if nothing is known against it.
        metrics: as given when it was saved.
        downgrades: what of the training's state it does not restore exactly.
    """

    key: str
    step: int
    epoch: int
    serial: int
    created_at: float | None = None
    size: int | None = None
    reason: str | None = None
    pinned: tuple[str, ...] = ()
    quarantined: str | None = None
    metrics: Mapping[str, float]
    downgrades: tuple[str, ...] = ()


def entries(store: Store, run_id: str = "") -> list[Entry]:
    """Return all checkpoints, the oldest first; nothing but manifests is read.

    Args:
        store: where they are.
        run_id: the run whose store this is, so that a checkpoint of another one is shown as such; "" for any.

    Raises:
        StoreError: the store cannot be read.
    """
    pinned = pins(store)
    notes = {stat.key for stat in store.list(names.QUARANTINE)}
    found = []
    for stat in restore.commits_of(store):
        place = names.place_of(stat.key)
        if place is None:
            continue
        manifest, trouble = _look(store, stat.key, run_id)
        if manifest is None and trouble is None:
            continue
        if names.note(stat.key) in notes:
            trouble = restore.noted(store, stat.key) or trouble or "it did not verify"
        found.append(
            Entry(
                key=stat.key,
                step=place.step,
                epoch=place.epoch,
                serial=place.serial,
                created_at=manifest.created_at if manifest else None,
                size=manifest.total_bytes if manifest else None,
                reason=manifest.reason if manifest else None,
                pinned=tuple(sorted(name for name, key in pinned.items() if key == stat.key)),
                quarantined=trouble,
                metrics=manifest.metrics if manifest else {},
                downgrades=manifest.downgrades if manifest else (),
            )
        )
    return found


def verify(store: Store, key: str, run_id: str = "") -> str | None:
    """Read all of one checkpoint; return what is wrong with it, or None. A good one leaves quarantine.

    Raises:
        InputError: there is no such checkpoint.
        StoreError: it cannot be read, which says nothing about whether it is good.
    """
    _known(store, key)
    try:
        restore.verify(store, key, run_id)
    except (CheckpointError, FutureFormatError) as error:
        return str(error)
    with suppress(MissingError):
        store.delete(names.note(key))
    return None


def pin(store: Store, key: str, name: str) -> None:
    """Keep a checkpoint until it is unpinned; a pin of that name moves here.

    Raises:
        InputError: there is no such checkpoint, or the name is none.
        StoreError: the store cannot be written.
    """
    if not _PIN.fullmatch(name):
        raise InputError(
            f"This is no name of a pin. Received: {name!r}. Allowed: lowercase letters, digits, - and _, at most 40."
        )
    _known(store, key)
    while True:
        try:
            expected: str | None = store.stat(names.pin(name)).generation
        except MissingError:
            expected = None
        try:
            store.swap(names.pin(name), [wrap("pin", {"commit": key})], expected=expected)
            break
        except (ConflictError, MissingError, AlreadyExistsError):
            continue
    try:
        store.stat(key)
    except MissingError:
        raise InputError(f"The checkpoint {key!r} was removed as too old while it was pinned.") from None


def unpin(store: Store, name: str) -> None:
    """Take a pin away.

    Raises:
        InputError: there is no pin of that name.
    """
    try:
        store.delete(names.pin(name) if _PIN.fullmatch(name) else names.pin("-"))
    except MissingError:
        known = sorted(pins(store))
        hint = nearest(name, known) if known else "Nothing is pinned."
        raise InputError(f"There is no pin of that name. Received: {name!r}. {hint}") from None


def pins(store: Store) -> dict[str, str]:
    """Return the commit of each pin, by name.

    Raises:
        CorruptCheckpointError, CorruptObjectError: a pin is damaged: nobody can tell what it keeps.
        StoreError: the store cannot be read.
    """
    found = {}
    for stat in store.list(names.PINS):
        name = stat.key.removeprefix(names.PINS).removesuffix(".json")
        with suppress(MissingError):
            found[name] = Fields(unwrap("pin", store.get(stat.key)), f"The pin {name!r}").text("commit")
    return found


def _known(store: Store, key: str) -> None:
    commits = [stat.key for stat in restore.commits_of(store)]
    if key not in commits:
        hint = nearest(key, commits) if commits else "There are none."
        raise InputError(f"There is no such checkpoint in {store.url}. Received: {key!r}. {hint}")


def _look(store: Store, key: str, run_id: str) -> tuple[Manifest | None, str | None]:
    try:
        return restore.read_manifest(store, key, run_id), None
    except MissingError:
        # Removed as too old since it was listed.
        return None, None
    except (CheckpointError, CorruptObjectError, FutureFormatError) as error:
        return None, str(error)
