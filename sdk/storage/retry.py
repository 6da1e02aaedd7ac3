"""How requests are repeated: never forever, and never in step with other processes. One helper for all of podlift.

Two retry on their own: Google's client renews a rejected token, and the watchdog of an uploader imports nothing.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ..clock import Clock

# The least time for a try, and how soon a waiting call notices a new deadline, in seconds.
_LAST_TRY_S, _NAP_S = 0.05, 0.5


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """The limits of one call, in seconds."""

    connect_s: float = 10.0  # for a connection, and for each piece that is sent
    read_s: float = 60.0  # for an answer to begin, and for each piece of it
    total_s: float = 600.0  # for the call with all its retries
    first_s: float = 30.0  # instead of total_s until the store has answered once: a wrong address is reported soon
    wait_s: float = 0.25  # the longest wait before the second try; it doubles with each further try


def backoff(failures: int, first_s: float, longest_s: float) -> float:
    """Return how long to wait after this many failures in a row: `first_s` after one, and twice as long after each further."""
    return min(longest_s, first_s * 2.0 ** min(failures - 1, 64))


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Return how long a service asks to wait; None if it does not, or asks in another form than seconds."""
    given = next((value for name, value in headers.items() if name.lower() == "retry-after"), "")
    try:
        return max(0.0, float(given))
    except ValueError:
        return None


class Retries:
    """The tries of one call, or of one that is repeated until it succeeds.

    `limit` returns the monotonic time of the deadline, which may be set later. The longest wait before the second try is
    `first_s`; it doubles with each further try.
    """

    def __init__(
        self, clock: Clock, first_s: float, *, longest_s: float = 32.0, limit: Callable[[], float] = lambda: math.inf
    ) -> None:
        self._clock = clock
        self._limit = limit
        self._first_s, self._longest_s = first_s, longest_s
        self._started = clock.monotonic()
        self.count = 0  # failed tries
        self.unsure = False  # one of them may have taken effect

    @classmethod
    def within(cls, total_s: float, clock: Clock, first_s: float, *, longest_s: float) -> Retries:
        """Return the tries of a call that may take this long."""
        until = clock.monotonic() + total_s
        return cls(clock, first_s, longest_s=longest_s, limit=lambda: until)

    @property
    def spent_s(self) -> float:
        """Seconds since the first try began."""
        return self._clock.monotonic() - self._started

    @property
    def left_s(self) -> float:
        return self._limit() - self._clock.monotonic()

    def again(self, asked_s: float | None = None) -> bool:
        """Wait before the next try, at least the `asked_s` that the store asked for; False if no time is left for one."""
        self.count += 1
        # Full jitter: writers that failed together must not retry together.
        wait_s = random.uniform(0, backoff(self.count, self._first_s, self._longest_s))  # noqa: S311
        # The last try starts before the deadline.
        wake = self._clock.monotonic() + min(wait_s, self.left_s / 2) + (asked_s or 0.0)
        while (rest_s := wake - self._clock.monotonic()) > 0:
            if rest_s > self.left_s - _LAST_TRY_S:
                return False
            self._clock.sleep(min(rest_s, _NAP_S))
        return self.left_s > _LAST_TRY_S
