"""The records of all tasks of a run, read from the bucket to which every container uploads its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

from ...errors import StoreError
from ...job.layout import RunPaths
from ...logs import logger
from ...storage import posix
from ...storage.store import Store

_log = logger("runtime")

_KEYS = RunPaths("")
_AGENT = "agent"


def agent_of(task: str, tasks: Sequence[str]) -> str:
    """Return the source name in the records of a task's agent."""
    return f"{_AGENT}-{list(tasks).index(task)}"


def finished_tasks(store: Store, tasks: Sequence[str], attempt: int) -> set[str]:
    """Return the tasks of an attempt that are done or have an ended process; none if the bucket cannot be read."""
    names = set()
    try:
        for name in _names(store, attempt):
            source, kind = name.split(".")[1], name.split(".")[3]
            if kind == "done":
                names.add(source)
            elif kind == "exited" and source.startswith(f"{_AGENT}-"):
                names.add(tasks[int(source.rpartition("-")[2])])
    except StoreError as error:
        _log.info(f"cannot read whether the other tasks are done: {error}")
    return names


def copy_own(store: Store, paths: RunPaths, attempt: int, sources: Sequence[str]) -> None:
    """Copy the records that another container has written for the same task and attempt, so that they are continued."""
    for name in _names(store, attempt):
        if name.split(".")[1] in sources:
            with suppress(FileExistsError):
                posix.put_copy(f"{paths.events}/{name}", bytes(store.get(f"{_KEYS.events}/{name}")))


def _names(store: Store, attempt: int) -> Iterator[str]:
    for stat in store.list(f"{_KEYS.events}/{attempt:04d}."):
        yield stat.key.rpartition("/")[2]
