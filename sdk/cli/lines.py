"""Prints log lines: as a terminal would leave them, or one by one behind the name of their task."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime

from ..backends.base import LogLine
from ..clock import Clock

# A progress bar is worth a line so often, where it cannot be printed over the one before.
_STATE_S = 10.0
_CLEAR_REST = "\x1b[K"


class Printer:
    """Prints lines on stdout, one after the other.

    Args:
        prefixed: each behind its task's name.
        following: somebody waits for each line.
        terminal: what was printed can be printed over.
        clock: what time it is.
        timestamps: each behind the time at which it was there.
    """

    def __init__(
        self, *, prefixed: bool, following: bool, terminal: bool, clock: Clock, timestamps: bool = False
    ) -> None:
        self._timestamps = timestamps
        self._prefixed = prefixed
        self._following = following
        self._over = terminal and not prefixed
        self._clock = clock
        self._shown: dict[str, float] = {}
        self._end, self._attempt = "\n", 0

    def show(self, line: LogLine) -> None:
        """Print a line; the states of a progress bar only where they can be printed over, or now and then."""
        if line.end == "\r" and not self._over and not self._is_time(line.task):
            return
        if self._prefixed:
            self._print(f"{self._time(line)}{line.task} | {line.text}\n")
            return
        if line.attempt != self._attempt:
            self.close()
        self._attempt = line.attempt
        # The rest of a line without an end follows behind it.
        end = "\n" if line.end == "\r" and not self._over else line.end
        clear = _CLEAR_REST if "\r" in (end, self._end) else ""
        # A piece of a line goes on behind the piece before.
        time = self._time(line) if self._end else ""
        self._print(f"{time}{line.text}{clear}{end}")
        self._end = end

    def close(self) -> None:
        """End the last line."""
        if self._end != "\n":
            self._print("\n")
            self._end = "\n"

    def _is_time(self, task: str) -> bool:
        now = self._clock.monotonic()
        if not self._following or now - self._shown.get(task, now) < _STATE_S:
            self._shown.setdefault(task, now)
            return False
        self._shown[task] = now
        return True

    def _time(self, line: LogLine) -> str:
        if not self._timestamps:
            return ""
        if line.time is None:
            return f"{'-':<{len(_stamp(0.0))}} "
        return f"{_stamp(line.time)} "

    def _print(self, text: str) -> None:
        # A write for each line costs more than reading it.
        print(text, end="", flush=self._following)


def _stamp(time: float) -> str:
    return datetime.fromtimestamp(time).astimezone().isoformat(timespec="milliseconds")


def is_whole(line: LogLine) -> bool:
    """True for what counts as a line: no state of a progress bar, no piece of a line."""
    return line.end == "\n"


def since_then(lines: Iterable[LogLine], after: float | None) -> Iterator[LogLine]:
    """Yield the lines that were not there before a time; one whose time nobody noted is as old as the one before it.

    Args:
        lines: in the order in which they were written.
        after: unix time in seconds; None for all of them.
    """
    last: dict[str, float] = {}
    for line in lines:
        time = line.time if line.time is not None else last.get(line.task)
        if time is not None:
            last[line.task] = time
        if after is None or time is None or time >= after:
            yield line


def too_many(lines: Iterable[LogLine], wanted: int | None) -> int:
    """Return how many of the lines there are before the last `wanted` ones; None is for all."""
    count, unended = 0, False
    for line in lines:
        count += is_whole(line)
        unended = line.end == ""
    # Last words without an end are a line too.
    return 0 if wanted is None else max(0, count + unended - wanted)
