"""The records of a run, and the pure function that reads a status out of them.

Every record is one small JSON file that is created once and never changed. Each is written by one source (the client, the
supervisor, a task), which numbers its own; its name holds attempt, source, number and kind. The truth of a run is the
set of its records, in whatever order they are found.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from .status import Failure, Reason, State, Status

VERSION = 1
_NAME = re.compile(r"(\d{4})\.([a-z]+(?:-\d+)?)\.(\d{6})\.([a-z_]+)\.json")
# What the surviving peers of a dead task raise: never the cause while another task has a reason of its own.
_COLLATERAL = {"UnavailableError", "AbortedError", "CancelledError", "DeadlineExceededError"}


@dataclass(frozen=True, kw_only=True)
class Event:
    """One record.

    Args:
        attempt: 0 for what comes before the first attempt.
        source: who wrote it: "client", "supervisor" or a task's name.
        sequence: counts one source's records of one attempt.
        kind: what happened.
        time: unix time in seconds, by the source's clock.
        data: the rest, JSON.
    """

    attempt: int
    source: str
    sequence: int
    kind: str
    time: float
    data: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> bytes:
        """Return the record's bytes."""
        return json.dumps({"version": VERSION, "time": self.time, "data": self.data}, sort_keys=True).encode()


def parse(name: str, text: bytes) -> Event:
    """Read one record from its file's name and bytes.

    Raises:
        ValueError: podlift wrote no such thing, or a later podlift did.
    """
    match = _NAME.fullmatch(posixpath.basename(name))
    if not match:
        raise ValueError(f"This is not the name of a record: {name!r}")
    record = json.loads(text)
    if not isinstance(record, dict) or record.get("version") != VERSION:
        raise ValueError(f"This is not a record of version {VERSION}: {name!r}")
    if not isinstance(record.get("time"), (int, float)) or not isinstance(record.get("data"), dict):
        raise ValueError(f"This record is damaged: {name!r}")
    return Event(
        attempt=int(match[1]),
        source=match[2],
        sequence=int(match[3]),
        kind=match[4],
        time=record["time"],
        data=record["data"],
    )


def fold(events: Sequence[Event], *, supervisor_alive: bool) -> Status:
    """Return what the records say.

    Args:
        events: all records of a run, in any order.
        supervisor_alive: False when it is known that no process can add a verdict any more.
    """
    ordered = sorted(events, key=lambda event: (event.time, event.attempt, event.source, event.sequence))
    created = next((event.time for event in ordered if event.kind == "submitted"), 0.0)
    attempts = max((event.attempt for event in ordered), default=0)
    common: dict[str, Any] = {"attempts": attempts, "created": created, "timings": _timings(ordered, created)}
    final = next((event for event in ordered if event.kind == "final"), None)
    if final is not None:
        failure = final.data.get("failure")
        return Status(
            state=State(final.data["state"]),
            reason=Reason(final.data["reason"]),
            failure=Failure(**failure) if failure else None,
            value=_value(ordered, attempts),
            **common,
        )
    if not supervisor_alive:
        lost = Failure(task="", message="The supervisor of this run is gone and left no verdict.")
        return Status(state=State.LOST, reason=Reason.SUPERVISOR_LOST, failure=lost, **common)
    if any(event.kind in ("cancelling", "stopping") for event in ordered):
        return Status(state=State.RUNNING, reason=Reason.STOPPING, **common)
    if any(event.kind == "preparing" for event in ordered) and not attempts:
        return Status(state=State.PENDING, reason=Reason.PREPARING, **common)
    if any(event.kind == "started" for event in ordered):
        return Status(state=State.RUNNING, reason=Reason.TRAINING, **common)
    return Status(state=State.PENDING, reason=Reason.SUBMITTED, **common)


def first_failure(events: Sequence[Event], attempt: int) -> Event | None:
    """Return the task record that explains why an attempt failed: the earliest that is no mere echo of a peer's death."""
    failed = [event for event in events if event.kind == "failed" and event.attempt == attempt]
    failed.sort(key=lambda event: (event.data.get("type") in _COLLATERAL, event.time, event.source))
    return failed[0] if failed else None


def is_collateral(event: Event) -> bool:
    """True for an error that a task raises when a peer of it has died."""
    return event.data.get("type") in _COLLATERAL


def _timings(ordered: Sequence[Event], created: float) -> dict[str, float]:
    wanted = {"started": "started", "entry": "entry", "first_step": "first_step", "final": "finished"}
    found: dict[str, float] = {}
    for event in ordered:
        if event.kind in wanted and wanted[event.kind] not in found:
            found[wanted[event.kind]] = round(event.time - created, 3)
    return found


def _value(ordered: Sequence[Event], attempt: int) -> Any:
    return next((e.data.get("value") for e in ordered if e.kind == "result" and e.attempt == attempt), None)
