"""The features of a terminal: its width, colours, drawing in place; lines with labels, and tables."""

from __future__ import annotations

import itertools
import os
import shutil
import sys
import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TextIO

from ..status import State
from ..text import harmless, visible
from .output import answer

# Of tables: spaces between columns, the width from which a last column wraps, and the indent of a line below a row.
_BETWEEN, _LEAST, _INDENT = 2, 30, 4
_LABEL = 10
_PLAIN = "\x1b[0m"
COLOURS = {
    State.PENDING: "yellow",
    State.RUNNING: "cyan",
    State.SUCCEEDED: "green",
    State.CHECKPOINTED: "yellow",
    State.CANCELLED: "magenta",
}
_FAILED = "red"
_CODES = {"red": 31, "green": 32, "yellow": 33, "magenta": 35, "cyan": 36}


def is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and stream.isatty()


def on_terminal() -> bool:
    return is_terminal(sys.stdout)


def width(stream: TextIO | None, variables: Mapping[str, str] = os.environ) -> int | None:
    """Return the width of a stream's terminal; elsewhere COLUMNS if that is set, or None: lines are not wrapped."""
    set_to = variables.get("COLUMNS", "")
    if set_to.isdecimal() and int(set_to) > 0:
        return int(set_to)
    return _columns(stream) if is_terminal(stream) else None


def _columns(stream: TextIO | None) -> int:
    try:
        # Not stdout's, which may be a pipe where this stream is a terminal.
        return (os.get_terminal_size(stream.fileno()).columns if stream else 0) or shutil.get_terminal_size().columns
    except (OSError, ValueError):
        return shutil.get_terminal_size().columns


def coloured(stream: TextIO | None, variables: Mapping[str, str] = os.environ) -> bool:
    """Return whether a stream is a terminal with a user who wants colours: https://no-color.org."""
    return is_terminal(stream) and not variables.get("NO_COLOR") and variables.get("TERM", "") not in ("dumb", "")


def moving(stream: TextIO | None, variables: Mapping[str, str] = os.environ) -> bool:
    """Return whether lines can be drawn again in place: not in the log of a CI job, which keeps each of them."""
    in_ci = variables.get("CI", "").lower() not in ("", "0", "false")
    return is_terminal(stream) and not in_ci and variables.get("TERM", "") not in ("dumb", "")


def colour_of(state: State | None) -> str:
    return _FAILED if state is None else COLOURS.get(state, _FAILED)


def painted(text: str, state: State | None) -> str:
    """Return a text for stdout in the colour of a state, where that can be seen."""
    return f"\x1b[{_CODES[colour_of(state)]}m{text}{_PLAIN}" if coloured(sys.stdout) else text


def facts(lines: Sequence[tuple[str, str]], columns: int | None, state: State | None = None) -> str:
    """Join labels and texts to lines, longer ones wrapped below their beginning; the line `state` has its colour."""
    labelled_lines = []
    # A program may have named a metric, or failed with a message, that would move the cursor.
    for label, value in ((label, harmless(value)) for label, value in lines):
        head, rest = f"{label:<{_LABEL}} ", " " * (_LABEL + 1)
        parts = [value] if columns is None else _wrapped(value, max(columns - len(rest), _LEAST))
        if label == "state":
            parts = [painted(part, state) for part in parts]
        labelled_lines.append(head + f"\n{rest}".join(parts))
    return "\n".join(labelled_lines)


def _wrapped(text: str, columns: int) -> list[str]:
    return textwrap.wrap(text, columns, break_on_hyphens=False, break_long_words=False) or [""]


def table(
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    whole: Collection[str] = (),
    under: bool = False,
    states: Sequence[State | None] = (),
) -> None:
    """Print a table on a terminal, lines with tabs elsewhere; the columns `whole` are never wrapped.

    With `under`, a terminal that is too narrow has no empty columns, and below each row the columns that do not fit beside it.
    `states` colour the column "state".
    """
    rows = [[*map(visible, row)] for row in rows]
    if not on_terminal():
        for row in rows:
            answer("\t".join(row))
        return
    columns = width(sys.stdout) or 0
    widths = _widths([header, *rows])
    if under and not _fits(widths, columns):
        filled = [not rows or any(row[at] not in ("", "-") for row in rows) for at in range(len(header))]
        header, *rows = ([*itertools.compress(line, filled)] for line in [header, *rows])
        widths = _widths([header, *rows])
    if under and not _fits(widths, columns):
        beside = sum(end - _BETWEEN <= columns for end in itertools.accumulate(widths))
        _print_under([header, *rows], widths[:beside], columns)
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=None, pad_edge=False, header_style="bold")
    for name in header:
        grid.add_column(name, no_wrap=name in whole)
    for at, row in enumerate(rows):
        # Not markup: a name may contain brackets.
        cells = [Text(cell) for cell in row]
        if states:
            cells[header.index("state")].stylize(colour_of(states[at]))
        grid.add_row(*cells)
    # The value of NO_COLOR is ours to read: rich keeps bold text in spite of it.
    Console(width=columns, color_system="standard" if coloured(sys.stdout) else None).print(grid)


def _widths(lines: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(len, cells)) + _BETWEEN for cells in zip(*lines, strict=True)]


def _fits(widths: Sequence[int], columns: int) -> bool:
    """Return whether a table fits; its last column may wrap if it gets enough of the line."""
    return sum(widths[:-1]) + min(widths[-1] - _BETWEEN, _LEAST) <= columns


def _print_under(lines: Sequence[Sequence[str]], widths: Sequence[int], columns: int) -> None:
    """Print as many columns as have widths, and the others of each line below it."""
    for line in lines:
        answer("".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=False)).rstrip())
        for part in textwrap.wrap((" " * _BETWEEN).join(line[len(widths) :]), columns - _INDENT):
            answer(f"{'':<{_INDENT}}{part}")
