"""Runs, checkpoints and log lines as a notebook shows them."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..checkpoint.catalog import CheckpointInfo
from ..process.log_lines import LogLine
from ..status import Status
from ..status import at_risk_s as risk_of
from ..text import duration, money, rate

if TYPE_CHECKING:
    from .gather import SeenRun


@dataclass(frozen=True, kw_only=True)
class RunInfo:
    """One run in the list that `runs` returns: `[(info.id, info.left_s) for info in sdk.runs(state="RUNNING")]`.

    Args:
        id: the run's id.
        url: its directory.
        status: its status; None for a directory that cannot be read.
        problem: why it, or one of its records, cannot be read; "" otherwise.
        backend: the name of its backend; "" if unknown.
        metrics: the last value of every metric, by name.
        metric: the main metric: the one of `Checkpoints.best`, else val_loss, else loss, else the first; "" for none.
        emulator: the address of the emulator that stands in for the cloud, such as "127.0.0.1:8123"; "" for none.
        place: the backend and the emulator, if any, in one line: "vertex, emulator at 127.0.0.1:8123"; "" if unknown.
        best: the best value of the main metric; None without one.
        curve: the shape of the main metric over time, as at most 40 characters from 0 (low) to z (high).
        steps: training steps of the run; None if unknown.
        rate: training steps in a second; None if unknown.
        left_s: seconds until its training ends, as far as its epochs or its limit of steps tell; None if unknown.
        entry: the program: "train.py"; "" if unknown.
        tasks: how many tasks it has; 0 if unknown.
        accelerator: the accelerator of each task: "l4:2", "cpu"; "" if unknown.
        labels: of its jobs in a cloud: "team=vision".
        args: arguments of its program by name, as texts.
    """

    id: str
    url: str
    status: Status | None
    problem: str = ""
    backend: str = ""
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    metric: str = ""
    emulator: str = ""
    place: str = ""
    best: float | None = None
    curve: str = ""
    steps: int | None = None
    rate: float | None = None
    left_s: float | None = None
    entry: str = ""
    tasks: int = 0
    accelerator: str = ""
    labels: Sequence[str] = ()
    args: Mapping[str, str] = field(default_factory=dict)

    def duration_s(self, now: float) -> float | None:
        """Return the seconds from submit to the end: `sdk.runs()[0].duration_s(time.time())`; None if unknown.

        Args:
            now: unix time in seconds, which stands for the end of a run that is still going.
        """
        if self.status is None or not self.status.created:
            return None
        return max(0.0, (self.status.since if self.status.state.terminal else now) - self.status.created)


class RunRows(list[RunInfo]):
    """Runs, as a list."""

    def _repr_html_(self) -> str:
        from .pages import render

        return render("rows.html", rows=[row(info, time.time()) for info in self])


class LogRows(Iterator[LogLine]):
    """Log lines, as an iterator. A notebook shows the last lines of each task, which reads none from the iterator."""

    def __init__(self, lines: Iterator[LogLine], run: SeenRun, task: str, attempt: int | None) -> None:
        self._lines, self._run, self._task, self._attempt = lines, run, task, attempt

    def __iter__(self) -> Iterator[LogLine]:
        return self._lines

    def __next__(self) -> LogLine:
        return next(self._lines)

    def _repr_html_(self) -> str:
        from .gather import tails
        from .pages import render

        attempt = self._attempt or self._run.status().attempts
        return render("tails.html", tails=tails(self._run, attempt, task=self._task))


class CheckpointRows(list[CheckpointInfo]):
    """Checkpoints, as a list."""

    def _repr_html_(self) -> str:
        from .pages import render

        return render("checkpoints.html", checkpoints=self)


@dataclass(frozen=True, kw_only=True)
class Row:
    """A run as the list of runs shows it."""

    info: RunInfo
    state: str
    reason: str
    age: str
    took: str
    value: float | None
    share: float | None
    pace: str
    spent: str
    at_risk: str
    hardware: str


def row(info: RunInfo, now: float) -> Row:
    """Return the row of a run; a damaged one has its problem."""
    status = info.status
    took_s = info.duration_s(now)
    usd = status.spent_usd if status else None
    risk = at_risk_s(info, now)
    left, done = (info.left_s or 0.0) * (info.rate or 0.0), info.steps or 0
    return Row(
        info=info,
        state=status.state.value if status else "UNREADABLE",
        reason=status.reason.value if status else "",
        age=duration(now - status.created, units=1) if status and status.created else "",
        took="" if took_s is None else duration(took_s),
        value=info.metrics.get(info.metric),
        share=done / (done + left) if left and done else None,
        pace=", ".join(_pace(info)),
        spent="" if status is None or usd is None else f"{'at least ' if status.spent_at_least else ''}{money(usd)}",
        at_risk="" if risk is None else duration(risk, units=1),
        hardware=hardware(info),
    )


def hardware(info: RunInfo) -> str:
    return f"{info.tasks} x {info.accelerator}" if info.tasks and info.accelerator else ""


def at_risk_s(info: RunInfo, now: float) -> float | None:
    """Return the seconds of training since the last checkpoint of a run that is going; None if there is none."""
    return None if info.status is None or info.status.state.terminal else risk_of(info.status, now)


def _pace(info: RunInfo) -> list[str]:
    words = [rate(info.rate)] if info.rate else []
    return [*words, *([f"{duration(math.ceil(info.left_s), units=1)} left"] if info.left_s else [])]
