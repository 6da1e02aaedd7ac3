"""Counts how a task spends its time. At every moment the task is in one part, so that the parts add up to its time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ..records.accounts import ACCOUNT_VERSION, PARTS, Part

# Reading the counter of the graph takes 20 microseconds, so it is not read in every step.
_SETTLE_NS = 1_000_000_000
START, COMPILE, INPUT_WAIT, STEP, CHECKPOINT, EVALUATION, OTHER = range(len(PARTS))


class Account:
    """The time of one process of a task, from its making on. Only the thread that trains changes it.

    Attributes:
        waited_ns: returns for how long the process has waited for input so far; None if that cannot be measured.
        settled: called with a finished part, once its waiting time is known.
        in_fit: True while Keras reports the beginning of each step.
    """

    def __init__(self, clock_ns: Callable[[], int] = time.monotonic_ns, now: Callable[[], float] = time.time) -> None:
        self._clock_ns, self._now = clock_ns, now
        self._spent = [0] * len(PARTS)
        self._at = START
        self._since = self._settled = clock_ns()
        self._start, self._waited = now(), 0
        self.waited_ns: Callable[[], int] | None = None
        self.settled: Callable[[int], None] | None = None
        self.in_fit = False
        self.steps = 0

    @property
    def part(self) -> Part:
        return PARTS[self._at]

    def enter(self, part: int) -> int:
        """End the present part and begin this one, which may be the same; return the one that has ended."""
        now, before = self._clock_ns(), self._at
        self._spent[before] += now - self._since
        self._since, self._at = now, part
        if before != part or now - self._settled >= _SETTLE_NS:
            self._settle(now, before)
        return before

    def _settle(self, now: int, part: int) -> None:
        """Move the time for which steps have waited for input. An evaluation or a restore keeps its own."""
        self._settled = now
        if self.waited_ns is None:
            return
        waited = self.waited_ns()
        if part in (STEP, COMPILE):
            moved = min(max(waited - self._waited, 0), self._spent[part])
            self._spent[part] -= moved
            self._spent[INPUT_WAIT] += moved
        self._waited = waited
        if self.settled is not None:
            self.settled(part)

    def spent(self, part: int) -> int:
        """Return the nanoseconds of a part that has ended, or was settled, so far."""
        return self._spent[part]

    @contextmanager
    def during(self, part: int) -> Iterator[None]:
        """Count the time of this context as that part."""
        before = self.enter(part)
        try:
            yield
        finally:
            self.enter(before)

    def step(self, done: int) -> None:
        """Count completed steps. In a loop that nothing else watches, a step ends here and the next one begins."""
        self.steps += done
        if not self.in_fit:
            self.enter(STEP)

    def batch(self) -> None:
        """Begin the step with the next batch of a loop's data; the first one compiles."""
        if not self.in_fit and self._at in (START, OTHER):
            self.enter(STEP if self.steps else COMPILE)

    def numbers(self) -> tuple[float, ...]:
        """Return the numbers of `ACCOUNT`."""
        measures, spent = self.waited_ns is not None, self._spent.copy()
        spent[self._at] += max(self._clock_ns() - self._since, 0)
        return ACCOUNT_VERSION, self._start, self._now(), self._at, self.steps, measures, *spent
