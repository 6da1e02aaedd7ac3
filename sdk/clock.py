"""Time as a parameter: code that needs it accepts a Clock, so that a test can pass its own."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Unix time in seconds, a monotonic time in seconds, and sleep in seconds."""

    def now(self) -> float: ...
    def monotonic(self) -> float: ...
    def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """The clock of this machine."""

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)
