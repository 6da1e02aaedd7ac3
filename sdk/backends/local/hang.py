"""Whether the tasks of an attempt still get on, and which of them is to blame when they do not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ...clock import Clock
from ...process.spawn import cpu_s
from ...records.recorder import read_progress
from ...spec import cluster
from ...spec.plan import Plan

# Looked at so many times within `hang_s`, and not more often than this.
_LOOKS, _LOOK_S = 20, 0.5
# A program that never reports lives as long as it takes this share of one CPU.
_BUSY = 0.01


class Pauses:
    """Measures how long a process that polls several times a second stood still: a sleeping laptop, or a SIGSTOP to the run.

    Args:
        clock: what time it is.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.begin()

    def begin(self) -> None:
        """Look from now on: what took its time before, such as imports, was no pause."""
        self._looked = self._clock.now()
        self.longest_s = 0.0

    def look(self) -> None:
        """Note the time since the last look."""
        now = self._clock.now()
        self.longest_s = max(self.longest_s, now - self._looked)
        self._looked = now


@dataclass(frozen=True, kw_only=True)
class Hang:
    """An attempt that does not get on.

    Args:
        task: the one that is furthest behind.
        message: the sentence for the user.
    """

    task: str
    message: str


@dataclass(frozen=True)
class _Signs:
    beats: tuple[int, ...]
    log_bytes: int
    cpu_s: float


class Life:
    """Watches one attempt.

    Args:
        plan: the run.
        attempt: counts from 1.
        pids: of the tasks, by name.
        clock: what time it is.
    """

    def __init__(self, plan: Plan, attempt: int, pids: Mapping[str, int], clock: Clock) -> None:
        self._plan = plan
        self._attempt = attempt
        self._pids = pids
        self._clock = clock
        self._limit_s: float | None = plan.job["limits"].get("hang_s")
        self._seen: _Signs | None = None
        self._changed = self._looked = clock.monotonic()

    def hang(self) -> Hang | None:
        """Return what hangs once nothing has moved for `hang_s` seconds; None before.

        From the first step on that anybody reports, only steps and batches count. A program that reports none is judged by
        what it prints and by the CPU time that it takes.
        """
        now = self._clock.monotonic()
        if self._limit_s is None:
            return None
        every_s = max(self._limit_s / _LOOKS, min(_LOOK_S, self._limit_s / 2))
        if now - self._looked < every_s:
            return None
        signs, elapsed = self._signs(), now - self._looked
        self._looked = now
        # Time without a poll, as when the whole run was stopped, counts as one poll.
        self._changed += max(0.0, elapsed - 2 * every_s)
        if self._seen is None or self._moved(self._seen, signs, elapsed):
            self._seen, self._changed = signs, now
        elif any(signs.beats) and not any(self._seen.beats):
            self._seen, self._changed = signs, now
        return self._blame(signs) if now - self._changed >= self._limit_s else None

    def _moved(self, before: _Signs, now: _Signs, elapsed: float) -> bool:
        if any(now.beats):
            return now.beats != before.beats
        busy = now.cpu_s - before.cpu_s >= _BUSY * elapsed
        self._seen = _Signs(before.beats, before.log_bytes, now.cpu_s)
        return busy or now.log_bytes != before.log_bytes

    def _signs(self) -> _Signs:
        paths, tasks = self._plan.paths, cluster.in_step(self._plan.tasks)
        beats = tuple((read_progress(paths.progress(self._attempt, task)) or (0, 0))[1] for task in tasks)
        logs = sum(_size(paths.log(self._attempt, task)) for task in tasks)
        return _Signs(beats, logs, sum(cpu_s(pid) for pid in self._pids.values()))

    def _blame(self, signs: _Signs) -> Hang:
        steps = {task: beats for task, beats in zip(cluster.in_step(self._plan.tasks), signs.beats, strict=True)}
        slow = min(steps, key=lambda task: steps[task])
        if not any(signs.beats):
            said = (
                f"Nothing was printed and no CPU time was used for {self._limit_s:g} s, and no step was ever reported"
            )
        else:
            others = ", ".join(f"{task} {count}" for task, count in steps.items())
            said = f"No task has finished a batch for {self._limit_s:g} s (hang_s). Batches so far: {others}"
        behind = f" {slow} is behind." if len(set(signs.beats)) > 1 else ""
        return Hang(
            task=slow, message=f"The run hangs. {said}.{behind} The Python stacks of every task are in its log."
        )


def _size(path: str) -> int:
    try:
        return Path(path).stat().st_size
    except FileNotFoundError:
        return 0
