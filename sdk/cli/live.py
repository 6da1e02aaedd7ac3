"""Draws the progress of a run on a terminal."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from ..run import Run
from ..status import Status
from ..text import duration, harmless
from .output import numbers
from .pace import AttemptHeadings, MetricRecord, place


@contextmanager
def turning() -> Iterator[Turning | None]:
    """Yield a view that draws on stderr, None if that is not a terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    with Live(console=console, refresh_per_second=8, transient=True) as live:
        yield Turning(live)


class Turning:
    """A line with a spinner while the run is going, and a line above it for each epoch."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._spinner = Spinner("dots")
        self._heads = AttemptHeadings()

    def say(self, text: str) -> None:
        self._live.console.print(Text(harmless(text)))

    def show(self, run: Run, status: Status, fresh: list[MetricRecord], position: str) -> None:
        for record in fresh:
            if head := self._heads.before(record, status):
                self._live.console.print(Text(head))
            # Text, not markup: a program may name a metric "[/x] loss".
            self._live.console.print(Text(harmless(f"{place(record)} {numbers(record['metrics'])}")))
        table = Table.grid(padding=(0, 1))
        # One line, whatever the width: the end is the least important.
        table.add_column()
        table.add_column(no_wrap=True, overflow="ellipsis")
        state = position or f"{status.state.value} ({status.reason.value})"
        elapsed = duration(max(0.0, time.time() - status.created))
        table.add_row(
            self._spinner, Text(f"{run.id} {elapsed.partition('.')[0] + ' s' if '.' in elapsed else elapsed}  {state}")
        )
        self._live.update(table)
