"""How long a store is asked again after it has not answered well: never for ever, and never in step with other processes."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from ..clock import Clock

_LONGEST_WAIT_S = 32.0
# What a try needs at least, and how soon a sleeper sees that it has to hurry, in seconds.
_LAST_TRY_S, _NAP_S = 0.05, 0.5


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """The limits of one call, in seconds.

    Attributes:
        connect_s: for a connection, and for each piece that is sent.
        read_s: for an answer to begin, and for each piece of it.
        total_s: for the call with all its repetitions.
        first_s: the same as long as the store has never answered anything: a wrong address is told soon.
        wait_s: before the second try, at most; twice that before the third, and so on.
    """

    connect_s: float = 10.0
    read_s: float = 60.0
    total_s: float = 600.0
    first_s: float = 30.0
    wait_s: float = 0.25


class RetryState:
    """The tries of one call.

    Args:
        clock: what time it is.
        limit: returns the monotonic time at which it gives up; asked again and again, because the process may come to hurry.
        wait_s: as of `Patience`.

    Attributes:
        count: how many failed so far.
        unsure: one of them may have been carried out although it failed.
    """

    def __init__(self, clock: Clock, limit: Callable[[], float], wait_s: float) -> None:
        self._clock = clock
        self._limit = limit
        self._wait_s = wait_s
        self._started = clock.monotonic()
        self.count = 0
        self.unsure = False

    @property
    def spent_s(self) -> float:
        """Seconds since the first one began."""
        return self._clock.monotonic() - self._started

    @property
    def left_s(self) -> float:
        """Seconds until it gives up."""
        return self._limit() - self._clock.monotonic()

    def again(self, asked_s: float | None) -> bool:
        """Wait before the next try; false if there is no time for one.

        Args:
            asked_s: how long the store has asked to wait; None for as long as it is usual.
        """
        # Spread wholly at random: writers that failed together must not come back together.
        wait_s = random.uniform(0, min(_LONGEST_WAIT_S, self._wait_s * 2**self.count))  # noqa: S311
        # The last try comes before the time is over, not behind it.
        wake = self._clock.monotonic() + min(wait_s, self.left_s / 2) + (asked_s or 0.0)
        self.count += 1
        while (rest_s := wake - self._clock.monotonic()) > 0:
            if rest_s > self.left_s - _LAST_TRY_S:
                return False
            self._clock.sleep(min(rest_s, _NAP_S))
        return self.left_s > _LAST_TRY_S
