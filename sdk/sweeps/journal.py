"""Optuna's journal in a Store: a numbered object for each append, created only if absent.

The number orders the appends of all drivers. A writer whose number exists reads that object, and takes the next one; `only`
lets it give up instead, so that a decision is written only if nothing was written since it was made. A hundred objects make a
snapshot, with which reading begins. Everything is JSON: Optuna's own snapshots are pickles.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from optuna.storages.journal import BaseJournalBackend

from ..errors import CorruptObjectError, CorruptRunError, MissingError
from ..storage.parallel import in_parallel
from ..storage.store import Store, create

SNAPSHOT_EVERY = 100
_VERSION = 1
_NUMBER = re.compile(r"[0-9]{8}")
# An object after more missing ones is none of a driver.
_LONGEST_GAP = 1000
Log = dict[str, Any]


class OvertakenError(Exception):
    """Another driver has written since this one has read."""


class StoreJournal(BaseJournalBackend):
    """The journal of one sweep: objects below a prefix of a store."""

    def __init__(self, store: Store, prefix: str) -> None:
        self._store, self._prefix = store, prefix
        self._logs: list[Log] = []
        self._next = 0  # number of the next object
        self._only: int | None = None
        self._batch: list[Log] | None = None
        self._read_all = False

    @property
    def position(self) -> int:
        """Return the number of the next object, as far as it was read."""
        return self._next

    def read_logs(self, log_number_from: int) -> Iterable[Log]:
        if self._batch is None:
            self._refresh()
        return self._logs[log_number_from:]

    def append_logs(self, logs: list[Log]) -> None:
        if self._batch is not None:
            self._batch += logs
            return
        data = _encoded(logs)
        while self._only not in (None, self._next) or not create(self._store, self._key(self._next), data):
            if self._only is not None:
                raise OvertakenError
            self._refresh()
        self._logs += logs
        self._next += 1
        if self._next % SNAPSHOT_EVERY == 0:
            create(self._store, f"{self._prefix}/snapshots/{self._next:08d}", _encoded(self._logs))

    @contextmanager
    def only(self, position: int) -> Iterator[None]:
        """Let the block write one object at this position, or raise OvertakenError."""
        self._only = position
        try:
            yield
        finally:
            self._only = None

    @contextmanager
    def together(self) -> Iterator[None]:
        """Write the lines that the block appends as one object."""
        self._batch = batch = list[Log]()
        try:
            yield
        finally:
            self._batch = None
        if batch:
            self.append_logs(batch)

    def lines(self) -> Iterator[str]:
        """Yield the lines of Optuna's journal file."""
        yield from (json.dumps(log, separators=(",", ":")) for log in self.read_logs(0))

    def _key(self, number: int) -> str:
        return f"{self._prefix}/logs/{number:08d}"

    def _refresh(self) -> None:
        """Read the objects that were written since the last time."""
        if not self._read_all:
            self._begin()
            self._read_all = True
        with suppress(MissingError):
            while True:
                self._logs += self._get(self._key(self._next))
                self._next += 1

    def _begin(self) -> None:
        """Read the last snapshot, and the objects after it."""
        snapshots = [stat.key for stat in self._store.list(f"{self._prefix}/snapshots/")]
        for key in reversed(snapshots):
            # A damaged or missing snapshot loses nothing: it only repeats the objects before it.
            with suppress(CorruptRunError, CorruptObjectError, MissingError):
                self._logs, self._next = self._get(key), int(key[-8:])
                break
        rest = self._keys(self._next)
        for logs in in_parallel(self._part, rest):
            self._logs += logs
        self._next += len(rest)

    def _keys(self, first: int = 0) -> list[str]:
        """Return the keys of the objects from a number on: each missing one before the last one, too."""
        names = (stat.key.removeprefix(f"{self._prefix}/logs/") for stat in self._store.list(f"{self._prefix}/logs/"))
        keys, after = list[str](), first
        for number in sorted(int(name) for name in names if _NUMBER.fullmatch(name)):
            if number - after > _LONGEST_GAP:
                return [*keys, self._key(after)]
            keys += map(self._key, range(after, number + 1))
            after = max(after, number + 1)
        return keys

    def _part(self, key: str) -> list[Log]:
        """Return an object that was written before another one: it may be later than the listing, but it is there."""
        try:
            return self._get(key)
        except MissingError:
            url = self._store.url
            raise CorruptObjectError(
                f"The object {key!r} of {url} is missing: a later one of the journal is there."
            ) from None

    def _get(self, key: str) -> list[Log]:
        try:
            data = json.loads(bytes(self._store.get(key)))
            if data["version"] != _VERSION:
                raise ValueError(f"version {data['version']}")
            return list(data["logs"])
        except (ValueError, TypeError, KeyError) as error:
            raise CorruptRunError(
                f"The object {key!r} of {self._store.url} is no part of a journal: {error!r}."
            ) from None


def _encoded(logs: list[Log]) -> bytes:
    return json.dumps({"version": _VERSION, "logs": logs}, separators=(",", ":")).encode()
