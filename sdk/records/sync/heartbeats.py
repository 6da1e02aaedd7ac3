"""What a run in a bucket says of itself every few seconds: that it lives, and how far it is, in one object."""

from __future__ import annotations

import json
from typing import Any

from ...errors import ConflictError, MissingError, StoreError
from ...spec.layout import RunPaths
from ...storage.store import Store

_KEY = RunPaths("").heartbeat


class Heartbeat:
    """The writer's side.

    Args:
        store: the run's directory in the bucket.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: str | None = None

    def say(self, said: dict[str, Any]) -> None:
        """Replace what was said before.

        Raises:
            StoreError: the bucket refuses, or somebody else writes it too.
        """
        text = json.dumps(said).encode()
        for _ in range(2):
            try:
                self._known = self._store.swap(_KEY, [text], expected=self._known).generation
                return
            except ConflictError:
                try:
                    self._known = self._store.stat(_KEY).generation
                except MissingError:
                    self._known = None
        raise StoreError(f"Somebody else writes {_KEY} of this run all the time.")


def read(store: Store) -> dict[str, Any]:
    """Return what was said last.

    Raises:
        MissingError: nothing was said yet.
        ValueError: it is no heartbeat.
    """
    said = json.loads(bytes(store.get(_KEY)))
    if not isinstance(said, dict):
        raise ValueError(f"This is no heartbeat: {said!r:.100}")
    return said
