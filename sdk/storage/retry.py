"""How requests are repeated: never forever, and never in step with other processes. One helper for all of podlift.

Two retry on their own: Google's client renews a rejected token, and the watchdog of an uploader imports nothing.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from ..clock import Clock
from ..errors import UnavailableError
from ..logs import logger
from ..text import duration

# The least time for a try, and how soon a waiting call notices a new deadline, in seconds.
_LAST_TRY_S, _NAP_S = 0.05, 0.5
# When an outage is reported, and how often again.
_REPORT_S, _REPORT_AGAIN_S = 30.0, 600.0
# The shortest and the longest time between two requests during an outage.
_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 30.0
# The command line shows the loggers below `podlift.backends`.
OUTAGES = logger("backends.outages")
_T = TypeVar("_T")


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
    """Return how long a service demands to wait; None if it does not, or uses another form than seconds."""
    delay = next((value for name, value in headers.items() if name.lower() == "retry-after"), "")
    try:
        return max(0.0, float(delay))
    except ValueError:
        return None


class Retries:
    """The tries of one call, or of a call that is repeated until it succeeds.

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
        """Wait before the next try, at least the `asked_s` that the store demands; False if no time is left for one."""
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

    def until_answered(self, call: Callable[[], _T]) -> _T:
        """Return the result of a call that may be executed twice; raise its last UnavailableError when no time is left."""
        while True:
            try:
                return call()
            except UnavailableError:
                if not self.again():
                    raise


class Outage:
    """Lets a wait outlive a service that does not answer: reports the problem after a while, and its end.

    Usage: `status = outage.outlive(run.status)`, again and again; it is None while the service does not answer.

    Args:
        clock: of the machine, or of a test.
        what: the subject of the report, such as "The run digits-k3f9aa cannot be read".
        effect: the last sentence of the report: the consequence meanwhile.
    """

    def __init__(self, clock: Clock, what: str, effect: str) -> None:
        self._clock = clock
        self._what, self._effect = what, effect
        self._since: float | None = None
        self._next_report = 0.0
        self._last_failure = 0.0
        self._reported = False
        self.failures = 0  # in a row
        self.error: UnavailableError | None = None  # the last one, during an outage

    @property
    def pause_s(self) -> float:
        """How long to wait before the next request; 0 without an outage."""
        return backoff(self.failures, _PAUSE_S, _LONGEST_PAUSE_S) if self.failures else 0.0

    @property
    def due(self) -> bool:
        """Whether it is time for the next request."""
        return self._clock.monotonic() - self._last_failure >= self.pause_s

    @property
    def lasted_s(self) -> float:
        return 0.0 if self._since is None else self._clock.monotonic() - self._since

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Catch the error of a service that does not answer, and count it in `failures`."""
        began = self._clock.monotonic()
        try:
            yield
        except UnavailableError as error:
            self._fail(error, began)
        else:
            self._end()

    def outlive(self, call: Callable[[], _T]) -> _T | None:
        """Return the result of the call, or None if the service does not answer."""
        with self.asking():
            return call()
        return None

    def _fail(self, error: UnavailableError, began: float) -> None:
        now = self._clock.monotonic()
        if self._since is None:
            # The call itself may have been repeated for a minute.
            self._since, self._next_report = began, began + _REPORT_S
        self.failures, self.error, self._last_failure = self.failures + 1, error, now
        if now >= self._next_report:
            self._reported, self._next_report = True, now + _REPORT_AGAIN_S
            OUTAGES.warning(f"{self._what} for {duration(self.lasted_s)} now: {_sentence(error)} {self._effect}")

    def _end(self) -> None:
        if self._reported:
            OUTAGES.info(f"The service answers again, after {duration(self.lasted_s)}.")
        self._since, self.failures, self.error, self._reported = None, 0, None, False


def _sentence(error: Exception) -> str:
    text = str(error)
    return text if text.endswith(".") else f"{text}."
