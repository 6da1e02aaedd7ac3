"""Signs of life of processes that work for others: a server of schedules, a driver of a sweep."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass

from ..clock import Clock
from ..errors import ConflictError, CorruptObjectError, MissingError
from ..job.wire import decode, parsed
from ..storage.store import Store, current
from . import spawn

HEARTBEAT_S = 30.0
# A firing, or the start of many trials, keeps a process busy for some seconds; the clocks of two machines differ.
HEARTBEAT_LATE_S = 180.0


@dataclass(frozen=True, kw_only=True)
class Heartbeat:
    """The last sign of life of a process."""

    time: float = 0.0  # unix time; 0 if there was none
    process: str = ""  # its identity, perhaps with "/" and a part of the process
    log: str = ""  # its file
    ended: bool = False  # in order

    def is_live(self, now: float) -> bool:
        return not self.ended and not is_gone(self.process) and abs(now - self.time) < HEARTBEAT_LATE_S

    def is_before(self, time: float) -> bool:
        """True if its process did nothing at that time: it may have been killed after its last heartbeat."""
        return time > self.time + HEARTBEAT_LATE_S


def is_gone(process: str) -> bool:
    """Return whether this machine knows that a process has ended."""
    identity = process.partition("/")[0]
    return spawn.same_machine(identity) and not spawn.alive(identity)


class Heart:
    """Writes the heartbeats of a process: `heart.beat()` at each of its steps."""

    def __init__(self, store: Store, key: str, process: str, clock: Clock, log: str = "") -> None:
        self._store, self._key, self._clock = store, key, clock
        self._mine, self._beaten = Heartbeat(process=process, log=log), float("-inf")
        self._other: Heartbeat | None = None

    def beat(self, *, ended: bool = False) -> None:
        """Write a heartbeat if one is due. The last one of this process leaves the heartbeat of another live process."""
        now = self._clock.now()
        if not ended and 0 <= now - self._beaten < HEARTBEAT_S:
            return
        self._beaten = now
        last, generation = _read(self._store, self._key)
        is_other = last.process != self._mine.process and last.is_live(now)
        self._other = last if is_other else self._other if ended else None
        mine = Heartbeat(time=now, process=self._mine.process, log=self._mine.log, ended=ended)
        written = (self._other or mine) if ended else mine
        # The heartbeat of another process at the same moment is as good.
        with suppress(ConflictError):
            self._store.swap(self._key, [json.dumps(asdict(written)).encode()], expected=generation)


def last_heartbeat(store: Store, key: str) -> Heartbeat:
    """Return the last heartbeat; one that has ended if there was none, or if it is damaged."""
    return _read(store, key)[0]


def _read(store: Store, key: str) -> tuple[Heartbeat, str | None]:
    try:
        data, generation = current(store, key)
    except (MissingError, CorruptObjectError):
        return Heartbeat(ended=True), None
    with suppress(ValueError, TypeError):
        return decode(Heartbeat, parsed(data)), generation
    return Heartbeat(ended=True), generation
