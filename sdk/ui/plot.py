"""The curves of a run as a figure of matplotlib."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..errors import InputError, nearest
from ..records.metric_file import MetricRecord
from .curves import curves

_COLUMNS, _WIDTH, _HEIGHT = 3, 4.5, 3.0  # inches
# Fewer points are marked: a single one would be invisible.
_MARKED = 50


def draw(run: str, records: Sequence[MetricRecord], names: Sequence[str]) -> dict[str, Any]:
    """Return the axes of each metric, in a new figure."""
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise InputError(
            f"run.plot() draws with matplotlib, which cannot be imported: {error}. Next: pip install matplotlib. "
            "A cell of a notebook that ends in the run shows its curves without it."
        ) from None
    points = curves(records, 0.0)
    if not points:
        raise InputError(f"The run {run} has reported no metrics yet. Next: run.watch(), or podlift why {run}")
    names = [*map(str, names)]
    unknown = [name for name in names if name not in points]
    if unknown:
        raise InputError([f"The run {run} has no metric {name!r}. {nearest(name, sorted(points))}" for name in unknown])
    groups: dict[str, list[str]] = {}
    for name in names or points:
        groups.setdefault(name.removeprefix("val_"), []).append(name)
    columns = min(len(groups), _COLUMNS)
    rows = math.ceil(len(groups) / columns)
    size = (_WIDTH * columns, _HEIGHT * rows)
    figure, grid = pyplot.subplots(rows, columns, squeeze=False, figsize=size, layout="constrained")
    figure.suptitle(_plain(run))
    axes_of: dict[str, Any] = {}
    for axes, group in zip(grid.flat, groups.values(), strict=False):
        for name in group:
            steps = [point.step for point in points[name]]
            values = [math.nan if point.value is None else point.value for point in points[name]]
            axes.plot(steps, values, label=_plain(name), marker="." if len(steps) < _MARKED else None)
            axes_of[name] = axes
        axes.set_xlabel("step")
        axes.legend()
    for axes in grid.flat[len(groups) :]:
        axes.remove()
    return axes_of


def _plain(name: str) -> str:
    # matplotlib reads formulas between dollars, and leaves a label that begins with an underscore out of the legend.
    return (" " if name.startswith("_") else "") + name.replace("$", r"\$")
