"""The records of all tasks of a run, as a container sees them: in the bucket, where the other containers bring theirs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache

from ...errors import StoreError
from ...records.events import Event, parse
from ...records.sync.push import PATIENCE
from ...spec.layout import RunPaths
from ...spec.payload import Payload
from ...storage.gcs.store import GcsStore
from ...storage.store import Store

_KEYS = RunPaths("")
_AGENT = "agent"


def agent_of(task: str, tasks: Sequence[str]) -> str:
    """Return the name under which the agent of a task writes records."""
    return f"{_AGENT}-{list(tasks).index(task)}"


def read(store: Store, kinds: Sequence[str], attempts: Sequence[int]) -> list[Event]:
    """Return the records of these kinds and attempts.

    Raises:
        StoreError: the bucket cannot be read.
    """
    ends = tuple(f".{kind}.json" for kind in kinds)
    found = []
    for attempt in attempts:
        for name in _names(store, attempt):
            if name.endswith(ends):
                found.append(parse(name, bytes(store.get(f"{_KEYS.events}/{name}"))))
    return found


def gone_of(payload: Payload, log: Callable[[str], None]) -> set[str]:
    """Return the tasks of the payload's attempt that are done, or whose process is over; none while the bucket does not say.

    Args:
        payload: the attempt's.
        log: takes lines for people.
    """
    found = set()
    try:
        for name in _names(_store(payload.board), payload.attempt):
            source, kind = name.split(".")[1], name.split(".")[3]
            if kind == "done":
                found.add(source)
            elif kind == "exited" and source.startswith(f"{_AGENT}-"):
                found.add(payload.tasks[int(source.rpartition("-")[2])])
    except StoreError as error:
        log(f"cannot see whether the other tasks are done: {error}")
    return found


def _names(store: Store, attempt: int) -> Iterator[str]:
    for stat in store.list(f"{_KEYS.events}/{attempt:04d}."):
        yield stat.key.rpartition("/")[2]


@lru_cache(maxsize=2)
def _store(url: str) -> Store:
    return GcsStore(url.partition("://")[2], retry=PATIENCE)
