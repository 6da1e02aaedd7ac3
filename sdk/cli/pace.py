"""The speed of a training and the time it will still take, measured from repeated readings of its progress."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypedDict

from ..clock import Clock
from ..records.summaries import step_s
from ..status import Progress, Status, continuation, done_share, steps_left
from ..text import duration, rate

# The rate covers the last seconds, so that compilation or validation counts only for a while.
_WINDOW_S = 60.0
# A step that takes this much longer than the ones before is reported.
_QUIET_S, _QUIET_STEPS = 10.0, 5.0
_SETTLED_STEPS, _SETTLED_S = 10, 30.0  # one of both, and the remaining time is estimated

if TYPE_CHECKING:
    from typing_extensions import NotRequired


class MetricRecord(TypedDict):
    """One of `Run.metric_records()`."""

    attempt: int
    time: NotRequired[float]
    step: int | None
    epoch: int | None
    metrics: dict[str, float | None]


@dataclass(frozen=True, kw_only=True)
class Update:
    """The next line for a person who watches a run."""

    status: Status
    records: Sequence[MetricRecord] = ()  # since the last update
    position: str = ""  # how far the training has come, "" if unknown
    share: float | None = None  # of its steps that are done, from 0 to 1
    machine_loss: str = ""  # a sentence about the lost machine that ended the attempt before, "" if none was
    tasks: Sequence[str] = ()  # a line for each


class TrainingPace:
    """Called with each new `Run.progress()`, returns a line with the position, the rate and the remaining time."""

    def __init__(self, clock: Clock, max_steps: int | None = None) -> None:
        self._clock = clock
        self._max_steps = max_steps
        self._points: deque[tuple[float, int]] = deque()
        self._step: int | None = None
        self._attempt = 1
        self.share: float | None = None  # of the steps that are done, from 0 to 1; None if their number is unknown

    def __call__(self, progress: Progress | None, attempt: int = 1) -> str:
        if progress is None:
            self.share = None
            return ""
        left = steps_left(progress, self._max_steps)
        self.share = None if left is None else done_share(progress, left)
        now = self._clock.monotonic()
        if self._step is None or progress.step < self._step or attempt != self._attempt:
            self._points.clear()  # another attempt, which may repeat steps, and begins with a slow one
        elif progress.step > self._step:
            # From the end of the first step on: that one compiles.
            self._points.append((now, progress.step))
        self._step, self._attempt = progress.step, attempt
        while len(self._points) > 2 and now - self._points[0][0] > _WINDOW_S:
            self._points.popleft()
        return ", ".join([str(progress), *self._rest(progress, now)])

    def _rest(self, progress: Progress, now: float) -> list[str]:
        left = steps_left(progress, self._max_steps)
        if left == 0:
            return ["all steps done"]
        (start, first), (last, step) = (self._points[0], self._points[-1]) if self._points else ((now, 0), (now, 0))
        if step == first or last - start < 0.5:
            return []
        step_s = (last - start) / (step - first)
        if now - last > max(_QUIET_S, _QUIET_STEPS * step_s):
            return [f"no step for {duration(int(now - last))}"]
        settled = step - first >= _SETTLED_STEPS or last - start >= _SETTLED_S
        return [rate(1 / step_s), *([f"{_about(left * step_s)} left"] if left and settled else [])]


def _about(seconds: float) -> str:
    # Tenths of a second would be drawn again and again.
    return duration(math.ceil(seconds))


def recorded_pace(progress: Progress, records: Sequence[MetricRecord], max_steps: int | None) -> str:
    """Return the progress with the rate and the remaining time that the last records of its attempt show."""
    each_s = step_s(records)
    if each_s is None:
        return str(progress)
    left = steps_left(progress, max_steps)
    rest = f", about {_about(left * each_s)} left" if left else ""
    return f"{progress}, {rate(1 / each_s)}{rest}"


def is_stale(progress: Progress, last: MetricRecord, attempt: int) -> bool:
    """Return whether the progress of a `fit` is older than its last metrics, as it may be for a run in a bucket."""
    if progress.epoch is None or last["epoch"] is None or last["step"] is None:
        return False  # the numbers of steps that a program reports itself may count anything
    return last["attempt"] == attempt and progress.step < last["step"]


def caught_up(progress: Progress | None, records: Sequence[MetricRecord], attempt: int) -> Progress | None:
    """Return the progress, or the place of the last metrics if that is newer; None if a place is not known."""
    if progress is None or not records or not is_stale(progress, records[-1], attempt):
        return progress
    step, epoch, steps = records[-1]["step"], records[-1]["epoch"], progress.epoch_steps
    if step is None or epoch is None or progress.epoch is None or progress.epoch_step is None or steps is None:
        return None
    steps_before_epoch = (epoch - progress.epoch) * steps
    in_epoch = min(max(progress.epoch_step + step - progress.step - steps_before_epoch, 0), steps)
    return replace(progress, step=step, epoch=epoch, epoch_step=in_epoch)


class AttemptHeadings:
    """Separates the metrics of attempts, which may be of the same steps."""

    def __init__(self) -> None:
        self._attempt = 1

    def before(self, record: MetricRecord, status: Status, machine_loss: str = "") -> str:
        attempt = record["attempt"]
        if attempt == self._attempt:
            return ""
        self._attempt = attempt
        is_continuation = status.continued_step is not None and status.attempts == attempt
        begins = continuation(attempt, status.continued_step) if is_continuation else f"attempt {attempt}"
        return f"{machine_loss} {begins[:1].upper()}{begins[1:]}:" if machine_loss else f"{begins}:"


def place(record: MetricRecord) -> str:
    words = []
    if (epoch := record.get("epoch")) is not None:
        words.append(f"epoch {epoch}")
    if (step := record.get("step")) is not None:
        words.append(f"step {step}")
    return " ".join(words) or "metrics"
