"""Simulates a schedule over a span of time: which slots fire, are skipped and overlap. Runs nothing. Pure."""

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
    overlaps: datetime | None = None  # the slot of an earlier run that was still active
    reason: str = ""
    cause: str = "schedule"  # or catch_up

    def as_data(self) -> dict[str, str | None]:
        times = {name: getattr(self, name) for name in ("slot", "starts", "ends", "overlaps")}
        time_texts = {name: time.isoformat() if time else None for name, time in times.items()}
        return {**time_texts, "action": self.action, "reason": self.reason}


@dataclass(frozen=True, kw_only=True)
class Simulation:
    """The assumptions: how long runs take, in turn, and when no server is there to start them."""

    cron: Cron
    overlap: str = "skip"
    missed: str = "skip"
    durations_s: Sequence[float] = ()
    down: Sequence[tuple[datetime, datetime]] = ()

    def run(self, start: datetime, end: datetime) -> list[SimulatedSlot]:
        """Return every slot from `start` on and before `end`, with its simulated outcome."""
        slots = [SimulatedSlot(slot=slot) for slot in self.cron.between(start, end)]
        line = _Line(self.overlap, self.durations_s or [0.0], self.cron.zone)
        for moment, slot in self._due(slots):
            line.take(slot, moment)
        line.settle(datetime.max.replace(tzinfo=timezone.utc))
        return slots

    def _due(self, slots: Iterable[SimulatedSlot]) -> Iterator[tuple[datetime, SimulatedSlot]]:
        """Yield the slots that may start, and when; those missed while the server was down are marked."""
        missed: list[SimulatedSlot] = []
        back = None
        for slot in slots:
            moment = slot.slot.astimezone(timezone.utc)
            if back is not None and moment >= back:
                yield from self._late(missed, back)
                missed, back = [], None
            until = max(
                (last.astimezone(timezone.utc) for first, last in self.down if first <= moment < last), default=None
            )
            if until is None:
                yield moment, slot
            else:
                missed, back = [*missed, slot], until
        if back is not None:
            yield from self._late(missed, back)

    def _late(self, missed: list[SimulatedSlot], back: datetime) -> Iterator[tuple[datetime, SimulatedSlot]]:
        chosen = policy.caught_up(self.missed, missed)
        for slot in missed:
            slot.reason = "missed"
            if slot is chosen:
                slot.cause = policy.CATCH_UP
                yield back, slot
            else:
                slot.action = "skip"


class _Line:
    """The active runs, and the slot that waits for them."""

    def __init__(self, overlap: str, durations_s: Sequence[float], zone: ZoneInfo) -> None:
        self._overlap, self._durations, self._zone = overlap, cycle(durations_s), zone
        self._running: list[SimulatedSlot] = []
        self._waiting: SimulatedSlot | None = None

    def take(self, slot: SimulatedSlot, moment: datetime) -> None:
        self.settle(moment)
        active = self._running[-1] if self._running else None
        slot.overlaps = active.slot if active else None
        causes = [earlier.cause for earlier in self._running]
        decision = policy.decide(self._overlap, active=causes, waiting=self._waiting is not None)
        if decision == "skip":
            slot.action, slot.reason = "skip", "overlap: another slot waits" if self._waiting else "overlap"
        elif decision == "wait":
            self._waiting, slot.reason = slot, "queued"
        else:
            if decision == "replace" and active is not None:
                active.ends, active.reason = moment.astimezone(self._zone), "replaced"
                self._running = []
            self._start(slot, moment)

    def settle(self, moment: datetime) -> None:
        """End the runs that have ended by then, and start the slot that waited for them."""
        while self._waiting is not None and (free := max(_end(slot) for slot in self._running)) <= moment:
            waited, self._waiting, self._running = self._waiting, None, []
            self._start(waited, free)
        self._running = [slot for slot in self._running if _end(slot) > moment]

    def _start(self, slot: SimulatedSlot, moment: datetime) -> None:
        slot.starts = moment.astimezone(self._zone)
        slot.ends = (moment + timedelta(seconds=next(self._durations))).astimezone(self._zone)
        self._running.append(slot)


def _end(slot: SimulatedSlot) -> datetime:
    return (slot.ends or slot.slot).astimezone(timezone.utc)


def instant(name: str, text: str, zone: ZoneInfo) -> datetime:
    """Read a date or an instant in ISO 8601; without an offset it is in the schedule's zone."""
    try:
        moment = datetime.fromisoformat(text.strip().replace("Z", "+00:00"))
    except ValueError:
        raise InputError(
            f"{name}: not a date. Received: {text!r}. Expected: 2027-03-28, 2027-03-28T02:30 or 2027-03-28T02:30+01:00."
        ) from None
    return moment if moment.tzinfo else moment.replace(tzinfo=zone)
