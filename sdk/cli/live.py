"""Draws the progress of a run on a terminal: a table of metrics that grows, and one line that changes in place."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ..run import Run
from ..text import harmless
from .output import number
from .pace import AttemptHeadings, MetricRecord, Update
from .screen import coloured, moving, width

_BAR, _LEAST_BAR = 20, 8
# The bar leaves these columns to the time and the position, and keeps its width while they change theirs.
_WORDS = len("0:00:40  epoch 1/30 step 2/300, 1 min 4 s left")
_CELL, _LONGEST_NAME = 9, 20


@contextmanager
def drawing() -> Iterator[Drawing | None]:
    """Yield a view that draws on stderr, None if nothing can be drawn there in place."""
    if not moving(sys.stderr):
        yield None
        return
    console = Console(
        stderr=True, width=width(sys.stderr), color_system="standard" if coloured(sys.stderr) else None, highlight=False
    )
    # Drawn when something changes, not a number of times each second.
    with Live(console=console, auto_refresh=False, transient=True) as live:
        yield Drawing(live)


class MetricTable:
    """The metrics as rows of a table; its head comes again with each new name."""

    def __init__(self, columns: int) -> None:
        self._columns = columns
        self._names: list[str] = []
        self._visible_names: list[str] = []

    def lines(self, record: MetricRecord, *, again: bool = False) -> list[str]:
        """Return the row of a record, after the head of the table if that is needed."""
        new = sorted(record["metrics"].keys() - set(self._names))
        self._names += new
        head = [self._head()] if new or again else []
        values = [record["metrics"].get(name, ...) for name in self._visible_names]
        cells = ["" if value is ... else number(value) for value in values]
        widths = [_width(name) for name in self._visible_names]
        row = "".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
        return [*head, f"{_place(record)}{row}"]

    def _head(self) -> str:
        self._visible_names, left = [], self._columns - len(_place(None))
        for name in self._names:
            left -= _width(name)
            if left < len(" +999"):
                break
            self._visible_names.append(name)
        hidden = len(self._names) - len(self._visible_names)
        names = "".join(f"{_named(name):>{_width(name)}}" for name in self._visible_names)
        return f"{_place(None)}{names}{f' +{hidden}' if hidden else ''}"


def _place(record: MetricRecord | None) -> str:
    if record is None:
        return f"{'epoch':>5}{'step':>9}"
    epoch, step = record["epoch"], record["step"]
    return f"{'' if epoch is None else epoch:>5}{'' if step is None else step:>9}"


def _named(name: str) -> str:
    name = harmless(name)
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"


def _width(name: str) -> int:
    return max(len(_named(name)), _CELL) + 2


def _clock(seconds: float) -> str:
    """Return a time that is as long in the next second: the bar must not jump."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


def _bar(share: float, columns: int) -> ProgressBar:
    return ProgressBar(
        total=1.0, completed=share, width=columns, complete_style="cyan", finished_style="green", style="bright_black"
    )


class Drawing:
    """A line for each record of metrics, below them one for the run, and one for each task if there are such."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._heads = AttemptHeadings()
        self._table = MetricTable(live.console.width)
        self._drawn: tuple[object, ...] = ()

    def say(self, text: str) -> None:
        self._live.console.print(Text(harmless(text)))

    def show(self, run: Run, update: Update) -> None:
        status = update.status
        elapsed = _clock(max(0.0, time.time() - status.created))
        state = update.position or f"{status.state.value} ({status.reason.value})"
        drawn = (run.id, elapsed, state, update.share, *update.tasks)
        if drawn != self._drawn:
            self._drawn = drawn
            # First: each line that is printed draws the bar again below itself.
            self._live.update(self._lines(f"{run.id} ", f"{elapsed}  {state}", update.share, update.tasks))
            self._live.refresh()
        for record in update.records:
            head = self._heads.before(record, status, update.machine_loss)
            lines = [head] if head else []
            # Text, not markup: a program may name a metric "[/x] loss".
            for line in [*lines, *self._table.lines(record, again=bool(head))]:
                self._live.console.print(Text(line, no_wrap=True, overflow="ellipsis"))

    def _lines(self, name: str, caption: str, share: float | None, tasks: Sequence[str]) -> RenderableType:
        room = self._live.console.width - len(name) - 2
        bar = 0 if share is None or room - _WORDS < _LEAST_BAR else min(_BAR, room - _WORDS)
        if len(caption) > room - bar:
            place, *rest = caption.split(", ")
            caption = ", ".join([place, *rest[-1:]])  # without the rate
        # One line, whatever the width: the end is the least important.
        grid = Table.grid()
        if share is None or not bar:
            grid.add_column(no_wrap=True, overflow="ellipsis")
            grid.add_row(Text(f"{name}{caption}"))
        else:
            line = Table.grid()
            line.add_row(Text(name), _bar(share, bar), Text(f" {caption}", no_wrap=True, overflow="ellipsis"))
            grid.add_column()
            grid.add_row(line)
        for task in tasks:
            grid.add_row(Text(f"  {task}", no_wrap=True, overflow="ellipsis"))
        return grid
