"""Draws a run that goes on, for a person at a terminal."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from ..run import Run
from ..status import Status
from ..text import duration
from .output import numbers
from .pace import Heads, place


@contextmanager
def turning() -> Iterator[Turning | None]:
    """Yield what draws on stderr; None where that is no terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    with Live(console=console, refresh_per_second=8, transient=True) as live:
        yield Turning(live)


class Turning:
    """A line that turns while the run goes on, and one above it for each epoch."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._spinner = Spinner("dots")
        self._heads = Heads()

    def show(self, run: Run, status: Status, fresh: list[dict[str, Any]], position: str) -> None:
        for record in fresh:
            if head := self._heads.before(record, status):
                self._live.console.print(Text(head))
            # As Text: a program may call a metric "[/x] loss", which is broken markup.
            self._live.console.print(Text(f"{place(record)} {numbers(record['metrics'])}"))
        table = Table.grid(padding=(0, 1))
        # One line, whatever the width: the end of it is worth least.
        table.add_column()
        table.add_column(no_wrap=True, overflow="ellipsis")
        state = position or f"{status.state.value} ({status.reason.value})"
        elapsed = duration(max(0.0, time.time() - status.created))
        table.add_row(
            self._spinner, Text(f"{run.id} {elapsed.partition('.')[0] + ' s' if '.' in elapsed else elapsed}  {state}")
        )
        self._live.update(table)
