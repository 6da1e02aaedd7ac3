"""Sweeps as the page shows them: their trials and three charts. The command fills these views, as those of schedules."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .model import Rows

# Trials that a page has: of more, the best ones.
TRIALS = 300
# Colours of values, and the width and the height of a chart.
SHADES, WIDTH, HEIGHT = 6, 720.0, 180.0
# Points of a curve, and choices beside an axis, at most.
_POINTS, _MARKS = 60, 12


@dataclass(frozen=True, kw_only=True)
class TrialView:
    """One trial. Its state is a word; `curve` has the metric by epoch."""

    number: int
    state: str
    params: Mapping[str, object] = field(default_factory=dict)
    value: float | None = None
    curve: Mapping[int, float] = field(default_factory=dict)
    run: str = ""
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class Axis:
    """A parameter: its range, or its choices if it has any."""

    name: str
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    options: Sequence[object] = ()

    def place(self, value: object) -> float | None:
        """Return the height of a value on the axis, from 0 to 1; None for one that it does not have."""
        if self.options:
            # 1.5 and "1.5" are two choices.
            here = [option == value and type(option) is type(value) for option in self.options]
            return (here.index(True) + 0.5) / len(here) if any(here) else None
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return None
        low, high, at = (math.log(max(each, 1e-300)) if self.log else each for each in (self.low, self.high, value))
        return _share(at, low, high)

    def marks(self) -> list[tuple[float, str]]:
        """Return the numbers or choices beside the axis with their heights."""
        if not self.options:
            return (
                [(0.0, f"{self.low:.4g}"), (1.0, f"{self.high:.4g}")]
                if self.high > self.low
                else [(0.5, f"{self.low:.4g}")]
            )
        marks = [((at + 0.5) / len(self.options), str(option)) for at, option in enumerate(self.options)]
        return marks[:: (len(marks) - 1) // _MARKS + 1]


@dataclass(frozen=True, kw_only=True)
class Line:
    """One trial in a chart: the points of its line, and its colour from 0 for the worst values to 5 for the best."""

    trial: TrialView
    points: str
    shade: int
    is_best: bool


@dataclass(frozen=True, kw_only=True)
class SweepView:
    """One sweep.

    Args:
        state: running, done, cancelled, failed, stopped without a driver, or damaged.
        trials: those that are shown, by number; `left_out` counts the others.
        best: the number of the best trial, None before the first value.
        steps: the best value so far by the number of the trial.
        cost_usd: of the trials that have ended; None if nothing is billed.
    """

    name: str
    state: str
    why: str = ""
    metric: str = ""
    mode: str = "max"
    of: int = 0
    done: int = 0
    begun: int = 0
    trials: Sequence[TrialView] = ()
    left_out: int = 0
    best: TrialView | None = None
    steps: Sequence[tuple[int, float]] = ()
    axes: Sequence[Axis] = ()
    cost_usd: float | None = None
    limit_usd: float | None = None
    program: str = ""
    arguments: Rows = field(default_factory=list)
    rules: Rows = field(default_factory=list)
    problems: Sequence[str] = ()

    def shade(self, trial: TrialView) -> int:
        """Return the colour of a trial by the rank of its value, which one bad value does not change."""
        values = sorted({each.value for each in self.trials if each.value is not None}, reverse=self.mode == "min")
        return values.index(trial.value) * (SHADES - 1) // max(len(values) - 1, 1) if trial.value in values else 0

    def best_so_far(self) -> tuple[str, list[tuple[float, float, TrialView]], float, float] | None:
        """Return the step line of the best value, the points of the trials, and the lowest and highest value."""
        valued = [(trial, trial.value) for trial in self.trials if trial.value is not None]
        values = [value for _, value in [*valued, *self.steps]]
        if not values:
            return None
        last, low, high = max(self.begun - 1, 1), min(values), max(values)
        until = [*(number for number, _ in self.steps[1:]), last]
        ends = [((start, value), (end, value)) for (start, value), end in zip(self.steps, until, strict=False)]
        line = _points([(x / last, _share(y, low, high)) for pair in ends for x, y in pair])
        dots = [
            (trial.number / last * WIDTH, HEIGHT * (1 - _share(value, low, high)), trial) for trial, value in valued
        ]
        return line, dots, low, high

    def parallel(self) -> tuple[list[Axis], list[Line]] | None:
        """Return the axes of the parameters and of the metric, and a line for each trial with a value, the best ones last."""
        values = [trial.value for trial in self.trials if trial.value is not None]
        if not values or not self.axes:
            return None
        axes, lines = [*self.axes, Axis(name=self.metric, low=min(values), high=max(values))], list[Line]()
        for trial in self._by_shade():
            numbers = [*(trial.params.get(axis.name) for axis in self.axes), trial.value]
            places = [axis.place(value) for axis, value in zip(axes, numbers, strict=True)]
            if None not in places:
                corners = [(at / (len(axes) - 1), place) for at, place in enumerate(places) if place is not None]
                lines.append(self._line(trial, corners))
        return axes, lines

    def curves(self) -> tuple[list[Line], int, float, float] | None:
        """Return the curves of the trials, the best ones last, the last epoch, and the lowest and highest value."""
        values = [value for trial in self.trials for value in trial.curve.values()]
        last = max((max(trial.curve, default=1) for trial in self.trials), default=1)
        # The values of one epoch are in the chart of the best.
        if not values or last < 2:
            return None
        low, high = min(values), max(values)
        lines = list[Line]()
        for trial in self._by_shade():
            epochs = [*trial.curve]
            # The last one is there twice: a line of one point is a dot.
            sampled_epochs = [*epochs[:: len(epochs) // _POINTS + 1], *epochs[-1:]]
            corners = [((at - 1) / (last - 1), _share(trial.curve[at], low, high)) for at in sampled_epochs]
            lines += [self._line(trial, corners)] if corners else []
        return lines, last, low, high

    def _by_shade(self) -> list[TrialView]:
        return sorted(self.trials, key=lambda trial: (trial == self.best, self.shade(trial)))

    def _line(self, trial: TrialView, corners: Sequence[tuple[float, float]]) -> Line:
        return Line(trial=trial, points=_points(corners), shade=self.shade(trial), is_best=trial == self.best)


def _share(value: float, low: float, high: float) -> float:
    """Return the place of a value between two others, from 0 to 1."""
    # Halves: the difference of two numbers may be too large for a number.
    return min(max((value / 2 - low / 2) / (high / 2 - low / 2), 0.0), 1.0) if high / 2 > low / 2 else 0.5


def _points(corners: Sequence[tuple[float, float]]) -> str:
    """Return corners from 0 to 1 as the points of a polyline."""
    return " ".join(f"{x * WIDTH:.1f},{HEIGHT * (1 - y):.1f}" for x, y in corners)
