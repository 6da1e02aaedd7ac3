"""Prints log lines: as a terminal would show them, or each with the name of its task."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime

from ..backends.base import LogLine
from ..clock import Clock
from ..text import harmless

# How often a progress bar gets a new line if it cannot be overwritten.
_STATE_S = 10.0
_CLEAR_REST = "\x1b[K"


class Printer:
    """Prints lines on stdout.

    `prefixed` adds the task's name and `timestamps` the time to each line, `following` flushes after each line, and on a
    `terminal` a progress bar is overwritten in place.
    """

    def __init__(
        self, *, prefixed: bool, following: bool, terminal: bool, clock: Clock, timestamps: bool = False
    ) -> None:
        self._timestamps = timestamps
        self._prefixed = prefixed
        self._following = following
        self._over = terminal and not prefixed
        self._clock = clock
        self._last_times: dict[str, float] = {}
        self._end, self._attempt = "\n", 0

    def show(self, line: LogLine) -> None:
        """Print a line; updates of a progress bar only if they can be overwritten, or now and then."""
        if line.end == "\r" and not self._over and not self._is_time(line.task):
            return
        # A program may colour its output, but not move the cursor, name the window or fill the clipboard.
        text = harmless(line.text, colours=True)
        if self._prefixed:
            self._print(f"{self._time(line)}{line.task} | {text}\n")
            return
        if line.attempt != self._attempt:
            self.close()
        self._attempt = line.attempt
        # A line without an end continues in the next piece.
        end = "\n" if line.end == "\r" and not self._over else line.end
        clear = _CLEAR_REST if "\r" in (end, self._end) else ""
        # Only the first piece of a line has a time.
        time = self._time(line) if self._end else ""
        self._print(f"{time}{text}{clear}{end}")
        self._end = end

    def close(self) -> None:
        if self._end != "\n":
            self._print("\n")
            self._end = "\n"

    def _is_time(self, task: str) -> bool:
        now = self._clock.monotonic()
        if not self._following or now - self._last_times.get(task, now) < _STATE_S:
            self._last_times.setdefault(task, now)
            return False
        self._last_times[task] = now
        return True

    def _time(self, line: LogLine) -> str:
        if not self._timestamps:
            return ""
        if line.time is None:
            return f"{'-':<{len(_stamp(0.0))}} "
        return f"{_stamp(line.time)} "

    def _print(self, text: str) -> None:
        # Flushing each line takes longer than reading it.
        print(text, end="", flush=self._following)


def _stamp(time: float) -> str:
    return datetime.fromtimestamp(time).astimezone().isoformat(timespec="milliseconds")


def is_whole(line: LogLine) -> bool:
    """True for a complete line: neither an update of a progress bar nor a piece of a line."""
    return line.end == "\n"


def since_then(lines: Iterable[LogLine], after: float | None) -> Iterator[LogLine]:
    """Yield the lines written since a unix time, or all for None; a line without a time is as old as the one before it."""
    last: dict[str, float] = {}
    for line in lines:
        time = line.time if line.time is not None else last.get(line.task)
        if time is not None:
            last[line.task] = time
        if after is None or time is None or time >= after:
            yield line


def too_many(lines: Iterable[LogLine], limit: int | None) -> int:
    """Return how many lines precede the last `limit` ones; 0 for None."""
    count, unended = 0, False
    for line in lines:
        count += is_whole(line)
        unended = line.end == ""
    # An unfinished last line counts too.
    return 0 if limit is None else max(0, count + unended - limit)
