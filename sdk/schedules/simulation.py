"""What a schedule would do over a span of time: which slots fire, are skipped and overlap. Runs nothing. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from itertools import cycle
from zoneinfo import ZoneInfo

from ..errors import InputError
from . import policy
from .slots import Cron


@dataclass(kw_only=True)
class SimulatedSlot:
    """One slot of a simulation."""

    slot: datetime
    action: str = "fire"  # fire or skip
    starts: datetime | None = None  # later than the slot if it waited, or was caught up
    ends: datetime | None = None
    overlaps: datetime | None = None  # the slot of an earlier run that still went on
    reason: str = ""
    cause: str = "schedule"  # or catch_up

    def as_data(self) -> dict[str, str | None]:
        times = {name: getattr(self, name) for name in ("slot", "starts", "ends", "overlaps")}
        shown = {name: time.isoformat() if time else None for name, time in times.items()}
        return {**shown, "action": self.action, "reason": self.reason}


@dataclass(frozen=True, kw_only=True)
class Simulation:
    """The assumptions: how long runs take, in turn, and when no server is there to start them."""

    cron: Cron
    overlap: str = "skip"
    missed: str = "skip"
    durations_s: Sequence[float] = ()
    down: Sequence[tuple[datetime, datetime]] = ()

    def run(self, start: datetime, end: datetime) -> list[SimulatedSlot]:
        """Return every slot from `start` on and before `end`, with what becomes of it."""
        found = [SimulatedSlot(slot=slot) for slot in self.cron.between(start, end)]
        line = _Line(self.overlap, self.durations_s or [0.0], self.cron.zone)
        for moment, each in self._due(found):
            line.take(each, moment)
        line.settle(datetime.max.replace(tzinfo=timezone.utc))
        return found

    def _due(self, slots: Iterable[SimulatedSlot]) -> Iterator[tuple[datetime, SimulatedSlot]]:
        """Yield the slots that may start, and when; those missed while the server was down are marked."""
        missed: list[SimulatedSlot] = []
        back = None
        for each in slots:
            moment = each.slot.astimezone(timezone.utc)
            if back is not None and moment >= back:
                yield from self._late(missed, back)
                missed, back = [], None
            until = max(
                (last.astimezone(timezone.utc) for first, last in self.down if first <= moment < last), default=None
            )
            if until is None:
                yield moment, each
            else:
                missed, back = [*missed, each], until
        if back is not None:
            yield from self._late(missed, back)

    def _late(self, missed: list[SimulatedSlot], back: datetime) -> Iterator[tuple[datetime, SimulatedSlot]]:
        chosen = policy.caught_up(self.missed, missed)
        for each in missed:
            each.reason = "missed"
            if each is chosen:
                each.cause = policy.CATCH_UP
                yield back, each
            else:
                each.action = "skip"


class _Line:
    """The runs that go on, and the slot that waits for them."""

    def __init__(self, overlap: str, durations_s: Sequence[float], zone: ZoneInfo) -> None:
        self._overlap, self._durations, self._zone = overlap, cycle(durations_s), zone
        self._running: list[SimulatedSlot] = []
        self._waiting: SimulatedSlot | None = None

    def take(self, each: SimulatedSlot, moment: datetime) -> None:
        self.settle(moment)
        active = self._running[-1] if self._running else None
        each.overlaps = active.slot if active else None
        causes = [earlier.cause for earlier in self._running]
        decision = policy.decide(self._overlap, active=causes, waiting=self._waiting is not None)
        if decision == "skip":
            each.action, each.reason = "skip", "overlap: another slot waits" if self._waiting else "overlap"
        elif decision == "wait":
            self._waiting, each.reason = each, "queued"
        else:
            if decision == "replace" and active is not None:
                active.ends, active.reason = moment.astimezone(self._zone), "replaced"
                self._running = []
            self._start(each, moment)

    def settle(self, moment: datetime) -> None:
        """End what has ended by then, and start what waited for it."""
        while self._waiting is not None and (free := max(_end(each) for each in self._running)) <= moment:
            waited, self._waiting, self._running = self._waiting, None, []
            self._start(waited, free)
        self._running = [each for each in self._running if _end(each) > moment]

    def _start(self, each: SimulatedSlot, moment: datetime) -> None:
        each.starts = moment.astimezone(self._zone)
        each.ends = (moment + timedelta(seconds=next(self._durations))).astimezone(self._zone)
        self._running.append(each)


def _end(each: SimulatedSlot) -> datetime:
    return (each.ends or each.slot).astimezone(timezone.utc)


def instant(name: str, text: str, zone: ZoneInfo) -> datetime:
    """Read a date or an instant in ISO 8601; without an offset it is in the schedule's zone."""
    try:
        found = datetime.fromisoformat(text.strip().replace("Z", "+00:00"))
    except ValueError:
        raise InputError(
            f"{name}: not a date. Received: {text!r}. Expected: 2027-03-28, 2027-03-28T02:30 or 2027-03-28T02:30+01:00."
        ) from None
    return found if found.tzinfo else found.replace(tzinfo=zone)
