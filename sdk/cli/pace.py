"""The speed of a training and the time it will still take, measured from repeated readings of its progress."""

from __future__ import annotations

from collections import deque
from typing import TypedDict

from ..clock import Clock
from ..status import Progress, Status, continuation
from ..text import duration

# The rate is that of the last seconds, so that compilation or validation counts only for a while.
_WINDOW_S = 60.0
# A step that takes this much longer than the ones before is reported.
_QUIET_S, _QUIET_STEPS = 10.0, 5.0


class MetricRecord(TypedDict):
    """One of `Run.metrics()`."""

    attempt: int
    step: int | None
    epoch: int | None
    metrics: dict[str, float | None]


class TrainingPace:
    """Called with each new `Run.progress()`, returns a line with the position, the rate and the remaining time."""

    def __init__(self, clock: Clock, max_steps: int | None = None) -> None:
        self._clock = clock
        self._max_steps = max_steps
        self._seen: deque[tuple[float, int]] = deque()

    def __call__(self, progress: Progress | None) -> str:
        if progress is None:
            return ""
        now = self._clock.monotonic()
        if self._seen and progress.step < self._seen[-1][1]:
            self._seen.clear()  # another attempt, which repeats some steps
        if not self._seen or progress.step > self._seen[-1][1]:
            self._seen.append((now, progress.step))
        while len(self._seen) > 2 and now - self._seen[0][0] > _WINDOW_S:
            self._seen.popleft()
        return ", ".join([str(progress), *self._rest(progress, now)])

    def _rest(self, progress: Progress, now: float) -> list[str]:
        (begun, first), (last, step) = self._seen[0], self._seen[-1]
        if step == first or last - begun < 0.5:
            return []
        step_s = (last - begun) / (step - first)
        if now - last > max(_QUIET_S, _QUIET_STEPS * step_s):
            return [f"no step for {duration(now - last)}"]
        left = self._left(progress)
        return [_rate(step_s)] if left is None else [_rate(step_s), f"{duration(left * step_s)} left"]

    def _left(self, progress: Progress) -> int | None:
        until_limit = None if self._max_steps is None else max(0, self._max_steps - progress.step)
        return min((steps for steps in (until_limit, progress.left) if steps is not None), default=None)


def _rate(step_s: float) -> str:
    if step_s >= 2:
        return f"{step_s:.1f} s a step"
    return f"{1 / step_s:.3g} steps/s" if step_s > 1e-2 else f"{1 / step_s:.0f} steps/s"


def is_stale(progress: Progress, last: MetricRecord, attempt: int) -> bool:
    """Return whether the progress of a `fit` is older than its last metrics, as it may be for a run in a bucket."""
    if progress.epoch is None or last["epoch"] is None or last["step"] is None:
        return False  # the numbers of steps that a program reports itself may count anything
    return last["attempt"] == attempt and progress.step < last["step"]


class AttemptHeadings:
    """Separates the metrics of attempts, which may be of the same steps."""

    def __init__(self) -> None:
        self._attempt = 1

    def before(self, record: MetricRecord, status: Status) -> str:
        attempt = record["attempt"]
        if attempt == self._attempt:
            return ""
        self._attempt = attempt
        known = status.continued_step is not None and status.attempts == attempt
        return f"{continuation(attempt, status.continued_step)}:" if known else f"attempt {attempt}:"


def place(record: MetricRecord) -> str:
    words = []
    if (epoch := record.get("epoch")) is not None:
        words.append(f"epoch {epoch + 1}")
    if (step := record.get("step")) is not None:
        words.append(f"step {step}")
    return " ".join(words) or "metrics"
