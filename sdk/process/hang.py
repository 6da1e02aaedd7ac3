"""Detects tasks that hang, and the one to blame. The supervisor watches all tasks, and the agent of a container its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ..clock import Clock

# Checked this many times within `hang_s`, but not more often than the second value.
_CHECKS, _CHECK_S = 20, 0.5
# A program that reports no steps is active if it uses this share of one CPU.
_BUSY = 0.01


class Pauses:
    """Measures how long a polling process was suspended: a sleeping laptop, or SIGSTOP to the run."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.begin()

    def begin(self) -> None:
        """Start to measure. Earlier delays, such as imports, are not pauses."""
        self._checked = self._clock.now()
        self.longest_s = 0.0

    def update(self) -> None:
        now = self._clock.now()
        self.longest_s = max(self.longest_s, now - self._checked)
        self._checked = now


@dataclass(frozen=True, kw_only=True)
class Hang:
    task: str  # the slowest one
    message: str  # for the user


@dataclass(frozen=True, kw_only=True)
class Activity:
    """The activity of tasks so far."""

    beats: tuple[int, ...]  # finished steps and batches of each task
    output_bytes: int
    cpu_s: float


class HangDetector:
    """Watches tasks for `limit_s` seconds without any activity; None for no limit. `observe` is called now and then."""

    def __init__(self, limit_s: float | None, observe: Callable[[], Activity], clock: Clock) -> None:
        self._limit_s = limit_s
        self._observe = observe
        self._clock = clock
        self._last_activity: Activity | None = None
        self._changed = self._checked = clock.monotonic()

    def hang(self) -> Activity | None:
        """Return the last activity once there was no other for `limit_s` seconds.

        From the first reported step on, only steps and batches count. Until then, output and CPU time count.
        """
        now = self._clock.monotonic()
        if self._limit_s is None:
            return None
        every_s = max(self._limit_s / _CHECKS, min(_CHECK_S, self._limit_s / 2))
        if now - self._checked < every_s:
            return None
        activity, elapsed = self._observe(), now - self._checked
        self._checked = now
        # Time during which this process was suspended too counts as a single check.
        self._changed += max(0.0, elapsed - 2 * every_s)
        if self._last_activity is None or self._is_active(self._last_activity, activity, elapsed):
            self._last_activity, self._changed = activity, now
        elif any(activity.beats) and not any(self._last_activity.beats):
            self._last_activity, self._changed = activity, now
        return activity if now - self._changed >= self._limit_s else None

    def _is_active(self, before: Activity, now: Activity, elapsed: float) -> bool:
        if any(now.beats):
            return now.beats != before.beats
        busy = now.cpu_s - before.cpu_s >= _BUSY * elapsed
        self._last_activity = Activity(beats=before.beats, output_bytes=before.output_bytes, cpu_s=now.cpu_s)
        return busy or now.output_bytes != before.output_bytes


def blame(limit_s: float, beats: Mapping[str, int], *, silent: Sequence[str] = ()) -> Hang:
    """Name the slowest task, from the batches of each task; `silent` tasks did not report theirs."""
    slow = silent[0] if silent else min(beats, key=lambda task: beats[task])
    if not any(beats.values()):
        text = f"No output and no CPU time for {limit_s:g} s (limit_hang), and no step was ever reported"
    else:
        others = ", ".join(f"{task} {count}" for task, count in beats.items())
        text = f"No task has finished a batch for {limit_s:g} s (limit_hang). Batches so far: {others}"
    slowest = f" The slowest task is {slow}." if len(set(beats.values())) > 1 else ""
    if silent:
        slowest = f" The machine of {', '.join(silent)} does not report."
    return Hang(task=slow, message=f"The run hangs. {text}.{slowest} The Python stacks of every task are in its log.")
