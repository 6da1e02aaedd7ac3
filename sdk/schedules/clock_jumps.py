"""Jumps of a machine's clock: what a server sees of them, and records that were made by a clock that was ahead."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from ..clock import Clock
from ..logs import logger
from ..text import duration
from .records import MISSED, SKIPPED, SlotRecord

_log = logger("schedules")
# The clocks of two machines may differ by this, and one clock may be set by it, without a word.
TOLERANCE_S = 30.0
_REMEMBERED = 100
# A clock that went forward may be set back: for so long, no slot that it has passed over is caught up.
_SETTLES_S = 300.0


def early(record: SlotRecord, now: float) -> bool:
    """Return whether a slot was booked as skipped later than now: the clock was ahead, and the slot is still to come."""
    return record.state == SKIPPED and record.taken > now + TOLERANCE_S


@dataclass(frozen=True)
class _Jump:
    before: float  # what the clock would have shown
    after: float  # what it showed
    steady: float  # by the monotonic clock


class ClockWatch:
    """Compares the wall clock with the monotonic one, each time that it is read."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._read = clock.now(), clock.monotonic()
        self._forward: deque[_Jump] = deque(maxlen=_REMEMBERED)

    def read(self) -> float:
        """Return the time, and log a jump since the last reading."""
        (wall, steady), now, steady_now = self._read, self._clock.now(), self._clock.monotonic()
        self._read = now, steady_now
        jump = _Jump(before=wall + (steady_now - steady), after=now, steady=steady_now)
        if jump.after - jump.before > TOLERANCE_S:
            self._forward.append(jump)
            _log.warning("Slots are missed: %s", _forward(jump))
        elif jump.before - jump.after > TOLERANCE_S:
            _log.warning(
                "The clock of this machine was set back by %s. No slot fires twice", duration(jump.before - jump.after)
            )
        return now

    def missed(self, slot: float) -> str:
        """Return why a slot was missed while this server was there, "" if it is not known."""
        found = next((each for each in reversed(self._forward) if each.before < slot <= each.after), None)
        return f"{MISSED}: {_forward(found)}" if found else ""

    def may_be_set_back(self, slot: float) -> bool:
        """Return whether the clock has passed over this slot by a jump, a moment ago."""
        until = self._read[1] - _SETTLES_S
        return any(each.before < slot <= each.after and each.steady > until for each in self._forward)


def _forward(jump: _Jump) -> str:
    return f"the clock of this machine went forward by {duration(jump.after - jump.before)}: it was set, or the machine slept"
