"""Prints log lines: as a terminal would leave them, or one by one behind the name of their task."""

from __future__ import annotations

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
    """

    def __init__(self, *, prefixed: bool, following: bool, terminal: bool, clock: Clock) -> None:
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
            self._print(f"{line.task} | {line.text}\n")
            return
        if line.attempt != self._attempt:
            self.close()
        self._attempt = line.attempt
        # The rest of a line without an end follows behind it.
        end = "\n" if line.end == "\r" and not self._over else line.end
        clear = _CLEAR_REST if "\r" in (end, self._end) else ""
        self._print(f"{line.text}{clear}{end}")
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

    def _print(self, text: str) -> None:
        # A write for each line costs more than reading it.
        print(text, end="", flush=self._following)
