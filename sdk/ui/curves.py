"""The metrics of runs as curves: their points, and a choice of them where there are many. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..records.summaries import HEIGHTS

# Points and curves of a page in all. Of more metrics, the first ones by name are drawn.
POINTS, CURVES = 9_000, 120
_FEWEST = 16


class Point(NamedTuple):
    """A value of a metric; None if it was not a finite number."""

    step: float
    epoch: float
    time: float  # seconds since the submit of the run
    value: float | None
    attempt: int
    partial: bool = False  # of an epoch that was not finished


class Series(NamedTuple):
    """The curve of one run, as columns; `partial` has the places of values of unfinished epochs."""

    run: str
    step: list[float]
    epoch: list[float]
    time: list[float]
    value: list[float | None]
    partial: list[int]


class Chart(NamedTuple):
    """The curves of one metric."""

    name: str
    series: list[Series]


@dataclass(frozen=True, kw_only=True)
class Charts:
    """The charts of a page, and how many metrics it leaves out."""

    shown: list[Chart]
    left_out: int = 0


def curves(records: Iterable[Mapping[str, object]], begun: float) -> dict[str, list[Point]]:
    """Return the points of each metric. For a repeated step, the value of the later attempt counts."""
    by_metric: dict[str, list[Point]] = {}
    listed = [*records]
    unfinished = _unfinished(listed)
    for number, record in enumerate(listed):
        attempt = int(_number(record.get("attempt")) or 0)
        step = _number(record.get("step"))
        position = float(number) if step is None else step, _number(record.get("epoch")) or 0.0
        seconds = max((_number(record.get("time")) or begun) - begun, 0.0)
        metrics = record.get("metrics")
        for name, value in metrics.items() if isinstance(metrics, Mapping) else ():
            points = by_metric.setdefault(str(name), [])
            while points and points[-1].attempt < attempt and points[-1].step >= position[0]:
                points.pop()
            points.append(Point(*position, seconds, _number(value), attempt, number in unfinished))
    for points in by_metric.values():
        points.sort(key=lambda point: point.step)
    return by_metric


def _unfinished(records: Sequence[Mapping[str, object]]) -> set[int]:
    """Return the places of records of unfinished epochs: the last record of an attempt, with fewer steps than other epochs."""
    lengths, last = dict[int, float](), dict[float, tuple[int, float]]()
    for number, record in enumerate(records):
        step, attempt = _number(record.get("step")), _number(record.get("attempt")) or 0.0
        if step is None or record.get("epoch") is None:
            continue
        # Where an attempt has continued is unknown, but the first epoch begins with the run.
        before = last[attempt][1] if attempt in last else 0.0 if record["epoch"] == 0 else step
        if step > before:
            lengths[number] = step - before
        last[attempt] = number, step
    usual = max(lengths.values(), default=0.0)
    return {number for number, _ in last.values() if lengths.get(number, usual) < usual}


def thinned(points: Sequence[Point], most: int) -> list[Point]:
    """Return at most about `most` points, among them the lowest and the highest of each stretch, so that no peak is lost."""
    if len(points) <= most:
        return list(points)
    stretches = max(most // 2 - 1, 1)
    size = (len(points) - 2) / stretches
    indices = {0, len(points) - 1}
    for number in range(stretches):
        stretch = range(1 + int(number * size), 1 + int((number + 1) * size))
        candidates = [at for at in stretch if points[at].value is not None] or stretch[:1]
        indices |= {
            min(candidates, key=lambda at: points[at].value or 0.0),
            max(candidates, key=lambda at: points[at].value or 0.0),
        }
    return [points[at] for at in sorted(indices)]


def charts(runs: Mapping[str, Mapping[str, Sequence[Point]]]) -> Charts:
    """Return the charts of runs, each with the curves of all runs."""
    names = sorted({name for metrics in runs.values() for name in metrics})
    room = max(CURVES // max(len(runs), 1), 1)
    chart_names = names[:room]
    drawn = sum(name in metrics for name in chart_names for metrics in runs.values())
    most = max(POINTS // max(drawn, 1), _FEWEST)
    chart_list = [
        Chart(name, [_series(run, thinned(metrics[name], most)) for run, metrics in runs.items() if name in metrics])
        for name in chart_names
    ]
    return Charts(shown=chart_list, left_out=len(names) - len(chart_names))


def outline(points: Sequence[Point], width: int, height: int) -> list[str]:
    """Return a curve as the points of polylines of an SVG, one for each part without gaps."""
    few = thinned(points, width)
    values = [point.value for point in few if point.value is not None]
    if not values:
        return []
    low, first = min(values), few[0].step
    tall, wide = (max(values) - low) or 1.0, (few[-1].step - first) or 1.0
    lines: list[list[str]] = [[]]
    for point in few:
        if point.value is None:
            lines.append([])
            continue
        x, y = (point.step - first) / wide * width, height - (point.value - low) / tall * height
        lines[-1].append(f"{x:.1f},{y:.1f}")
    return [" ".join(line) for line in lines if line]


def polylines(shape: str, width: float = 100.0, height: float = 24.0) -> list[str]:
    """Return the curve in a summary as the points of polylines of an SVG, one for each part without gaps."""
    lines: list[list[str]] = [[]]
    for at, letter in enumerate(shape):
        level = HEIGHTS.find(letter)
        if level < 0:
            lines.append([])
            continue
        x, y = at / max(len(shape) - 1, 1) * width, 1 + (height - 2) * (1 - level / (len(HEIGHTS) - 1))
        lines[-1].append(f"{x:.1f},{y:.1f}")
    return [" ".join(line) for line in lines if line]


def _series(run: str, points: Sequence[Point]) -> Series:
    return Series(
        run,
        [_short(point.step) for point in points],
        [_short(point.epoch) for point in points],
        [_short(point.time) for point in points],
        [None if point.value is None else _short(point.value) for point in points],
        [at for at, point in enumerate(points) if point.partial],
    )


def _short(value: float) -> float:
    """Round to six digits, which is more than a screen shows."""
    rounded = float(f"{value:.6g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 1e15 else rounded


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None
