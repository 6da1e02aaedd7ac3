"""The emulator's clock: the machine's time, which can be moved ahead, or a frozen time."""

from __future__ import annotations

import bisect
import math
import re
import threading
from collections.abc import Iterable
from datetime import datetime, timedelta, timezone

from ...clock import Clock

_RFC3339 = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[Tt ](\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?(?:[Zz]|([+-])(\d\d):(\d\d))", re.ASCII
)
_MAX_AHEAD_S = 100 * 366 * 86400.0
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


class EmulatorClock:
    """Unix time in seconds; a frozen clock moves only by `advance`."""

    def __init__(self, clock: Clock, *, frozen: bool = False) -> None:
        self._clock = clock
        self._ahead_s = 0.0
        # The instants from which it was ahead, by this clock, and how far.
        self._moves: list[tuple[float, float]] = []
        self._lock = threading.Lock()
        self._frozen_at = clock.now() if frozen else None

    @property
    def frozen(self) -> bool:
        return self._frozen_at is not None

    @property
    def moves(self) -> list[tuple[float, float]]:
        """The instants from which it was ahead, by this clock, and how far."""
        with self._lock:
            return [*self._moves]

    def now(self) -> float:
        with self._lock:
            return self._now()

    def _now(self) -> float:
        return self._ahead_s + (self._clock.now() if self._frozen_at is None else self._frozen_at)

    def ahead_at(self, time: float) -> float:
        """Return how many seconds it was ahead of the machine at one of its own times; if frozen, on arrival at that time."""
        with self._lock:
            index = bisect.bisect_right(self._moves, (time, _MAX_AHEAD_S))
            return self._moves[index - 1][1] if index else 0.0

    def reaches(self, seconds: float) -> bool:
        """Return whether it can be moved ahead by this: neither back nor beyond the dates that can be written."""
        return 0 <= seconds <= _MAX_AHEAD_S - self._ahead_s

    def advance(self, seconds: float) -> bool:
        """Move it ahead; False if it cannot be."""
        with self._lock:
            if not self.reaches(seconds):
                return False
            self._ahead_s += seconds
            # While it stood, the machine's time continued.
            machine = self._clock.now()
            stood_s = 0.0 if self._frozen_at is None else machine - self._frozen_at
            # Records have whole microseconds: a record made now must not lie before the move.
            self._moves.append((math.floor(self._now() * 1e6) / 1e6, self._ahead_s - stood_s))
            return True

    def restore(self, moves: Iterable[tuple[float, float]]) -> None:
        """Continue a clock that had these moves."""
        with self._lock:
            self._moves = [*moves]
            self._ahead_s = self._moves[-1][1] if self._moves else 0.0

    def reset(self) -> None:
        """Undo `advance`. No remaining record may have a time of this clock."""
        with self._lock:
            self._ahead_s, self._moves = 0.0, []


def format_time(time_s: float) -> str:
    return (_EPOCH + timedelta(microseconds=round(time_s * 1e6))).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def format_time_ns(time_ns: int) -> str:
    return f"{(_EPOCH + timedelta(seconds=time_ns // 10**9)).strftime('%Y-%m-%dT%H:%M:%S')}.{time_ns % 10**9:09d}Z"


def parse_time_ns(text: str) -> int:
    match = _RFC3339.fullmatch(text)
    if match is None:
        raise ValueError(f"no time of RFC 3339: {text!r}")
    whole = datetime(
        int(match[1]), int(match[2]), int(match[3]), int(match[4]), int(match[5]), int(match[6]), tzinfo=timezone.utc
    )
    offset_s = (int(match[9]) * 3600 + int(match[10]) * 60) * (1 if match[8] == "+" else -1) if match[8] else 0
    since = whole - _EPOCH
    return (since.days * 86400 + since.seconds - offset_s) * 10**9 + int((match[7] or "0").ljust(9, "0"))
