"""Detects an attempt that hangs, and the task that is to blame."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ...clock import Clock
from ...process.spawn import cpu_s
from ...records.recorder import read_progress
from ...spec import cluster
from ...spec.plan import Plan

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


@dataclass(frozen=True)
class _Activity:
    beats: tuple[int, ...]
    log_bytes: int
    cpu_s: float


class HangDetector:
    def __init__(self, plan: Plan, attempt: int, pids: Mapping[str, int], clock: Clock) -> None:
        self._plan = plan
        self._attempt = attempt
        self._pids = pids
        self._clock = clock
        self._limit_s: float | None = plan.job.limits.hang_s
        self._seen: _Activity | None = None
        self._changed = self._checked = clock.monotonic()

    def hang(self) -> Hang | None:
        """Return a verdict once there was no activity for `hang_s` seconds.

        From the first reported step on, only steps and batches count. Until then, output and CPU time count.
        """
        now = self._clock.monotonic()
        if self._limit_s is None:
            return None
        every_s = max(self._limit_s / _CHECKS, min(_CHECK_S, self._limit_s / 2))
        if now - self._checked < every_s:
            return None
        activity, elapsed = self._activity(), now - self._checked
        self._checked = now
        # Time during which this process was suspended too counts as a single check.
        self._changed += max(0.0, elapsed - 2 * every_s)
        if self._seen is None or self._is_active(self._seen, activity, elapsed):
            self._seen, self._changed = activity, now
        elif any(activity.beats) and not any(self._seen.beats):
            self._seen, self._changed = activity, now
        return self._blame(activity) if now - self._changed >= self._limit_s else None

    def _is_active(self, before: _Activity, now: _Activity, elapsed: float) -> bool:
        if any(now.beats):
            return now.beats != before.beats
        busy = now.cpu_s - before.cpu_s >= _BUSY * elapsed
        self._seen = _Activity(before.beats, before.log_bytes, now.cpu_s)
        return busy or now.log_bytes != before.log_bytes

    def _activity(self) -> _Activity:
        paths, tasks = self._plan.paths, cluster.in_step(self._plan.tasks)
        beats = tuple(read_progress(paths.progress(self._attempt, task))[1] for task in tasks)
        logs = sum(_size(paths.log(self._attempt, task)) for task in tasks)
        return _Activity(beats, logs, sum(cpu_s(pid) for pid in self._pids.values()))

    def _blame(self, activity: _Activity) -> Hang:
        steps = {task: beats for task, beats in zip(cluster.in_step(self._plan.tasks), activity.beats, strict=True)}
        slow = min(steps, key=lambda task: steps[task])
        if not any(activity.beats):
            text = f"No output and no CPU time for {self._limit_s:g} s (limit_hang), and no step was ever reported"
        else:
            others = ", ".join(f"{task} {count}" for task, count in steps.items())
            text = f"No task has finished a batch for {self._limit_s:g} s (limit_hang). Batches so far: {others}"
        slowest = f" The slowest task is {slow}." if len(set(activity.beats)) > 1 else ""
        return Hang(
            task=slow, message=f"The run hangs. {text}.{slowest} The Python stacks of every task are in its log."
        )


def _size(path: str) -> int:
    try:
        return Path(path).stat().st_size
    except FileNotFoundError:
        return 0
