"""The records of all tasks of a run, read from the bucket to which every container uploads its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import lru_cache

from ...errors import StoreError
from ...job.layout import RunPaths
from ...job.payload import Payload
from ...logs import logger
from ...storage import posix
from ...storage.registry import open_store
from ...storage.store import Store
from ..events import Event, parse
from .index import SYNC_RETRY

_log = logger("runtime")

_KEYS = RunPaths("")
_AGENT = "agent"


def agent_of(task: str, tasks: Sequence[str]) -> str:
    """Return the source name in the records of a task's agent."""
    return f"{_AGENT}-{list(tasks).index(task)}"


def read(store: Store, kinds: Sequence[str], attempts: Sequence[int]) -> list[Event]:
    ends = tuple(f".{kind}.json" for kind in kinds)
    found = []
    for attempt in attempts:
        for name in _names(store, attempt):
            if name.endswith(ends):
                found.append(parse(name, bytes(store.get(f"{_KEYS.events}/{name}"))))
    return found


def finished_tasks(payload: Payload) -> set[str]:
    """Return the tasks of the attempt that are done or whose process ended; none if the bucket cannot be read."""
    found = set()
    try:
        for name in _names(_store(payload.bucket_url), payload.attempt):
            source, kind = name.split(".")[1], name.split(".")[3]
            if kind == "done":
                found.add(source)
            elif kind == "exited" and source.startswith(f"{_AGENT}-"):
                found.add(payload.tasks[int(source.rpartition("-")[2])])
    except StoreError as error:
        _log.info(f"cannot read whether the other tasks are done: {error}")
    return found


def copy_own(store: Store, paths: RunPaths, attempt: int, sources: Sequence[str]) -> None:
    """Copy the records that another container has written for the same task and attempt, so that they are continued."""
    for name in _names(store, attempt):
        if name.split(".")[1] in sources:
            with suppress(FileExistsError):
                posix.put_copy(f"{paths.events}/{name}", bytes(store.get(f"{_KEYS.events}/{name}")))


def _names(store: Store, attempt: int) -> Iterator[str]:
    for stat in store.list(f"{_KEYS.events}/{attempt:04d}."):
        yield stat.key.rpartition("/")[2]


@lru_cache(maxsize=2)
def _store(url: str) -> Store:
    return open_store(url, retry=SYNC_RETRY)
