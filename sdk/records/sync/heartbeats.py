"""The heartbeat of a run in a bucket: one object, rewritten every few seconds with its progress."""

from __future__ import annotations

import json
from typing import Any

from ...errors import ConflictError, MissingError, StoreError
from ...spec.layout import RunPaths
from ...storage.store import Store

_KEY = RunPaths("").heartbeat


class Heartbeat:
    """Writes heartbeats."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: str | None = None

    def write(self, beat: dict[str, Any]) -> None:
        """Replace the previous heartbeat."""
        text = json.dumps(beat).encode()
        for _ in range(2):
            try:
                self._known = self._store.swap(_KEY, [text], expected=self._known).generation
                return
            except ConflictError:
                try:
                    self._known = self._store.stat(_KEY).generation
                except MissingError:
                    self._known = None
        raise StoreError(f"Another process keeps writing {_KEY} of this run.")


def read(store: Store) -> dict[str, Any]:
    """Return the latest heartbeat."""
    beat = json.loads(bytes(store.get(_KEY)))
    if not isinstance(beat, dict):
        raise ValueError(f"This is not a heartbeat: {beat!r:.100}")
    return beat
