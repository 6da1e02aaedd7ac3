"""The kills of a drill so far, recorded by the tasks in the run's folder, or in its directory in a bucket."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TypedDict, cast

from ..errors import MissingError
from ..job.layout import RunPaths
from ..storage.store import Store

_KEYS = RunPaths("")


class Done(TypedDict):
    """The record that a task writes before it is killed."""

    attempt: int
    step: int | None  # None before the first step of the attempt
    time: float  # unix time in seconds


class KillRecords:
    """`store` is the run's directory in a bucket if its tasks run in containers: a replaced container loses its folder."""

    def __init__(self, paths: RunPaths, store: Store | None = None) -> None:
        self._paths, self._store = paths, store

    def done(self, index: int) -> Done | None:
        """Return the record of the kill with this index in the plan; None if it has not happened."""
        return cast("Done | None", self._read(_KEYS.kill(index)))

    def add(self, index: int, done: Done) -> None:
        self._write(_KEYS.kill(index), done)

    def counts(self, task: str) -> dict[str, int]:
        """Return how often a task has reached each kill point, over all attempts."""
        return dict(cast("Mapping[str, int]", self._read(_KEYS.kill_points(task)) or {}))

    def write_counts(self, task: str, counts: Mapping[str, int]) -> None:
        self._write(_KEYS.kill_points(task), counts)

    def _read(self, key: str) -> object:
        with suppress(FileNotFoundError, MissingError):
            if self._store is None:
                return json.loads(Path(f"{self._paths.url}/{key}").read_bytes())
            return json.loads(bytes(self._store.get(key)))
        return None

    def _write(self, key: str, data: object) -> None:
        """Replace a record: wherever this attempt is killed, the next one reads the old content or the new one."""
        text = json.dumps(data).encode()
        if self._store is not None:
            expected = None
            with suppress(MissingError):
                expected = self._store.stat(key).generation
            self._store.swap(key, [text], expected=expected)
            return
        target = Path(f"{self._paths.url}/{key}")
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(f".{target.name}.part")
        part.write_bytes(text)
        part.replace(target)
