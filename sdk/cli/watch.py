"""Watches a run from the foreground: progress, Ctrl-C, the last words."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from ..clock import Clock, SystemClock
from ..run import Run
from ..status import EXIT_CANCELLED, EXIT_INFRASTRUCTURE, State, Status
from .output import EXIT_DETACHED, answer, numbers, say
from .pace import Heads, Pace, place

_POLL_S = 0.2
# How long a first Ctrl-C waits for the second one, which cancels.
_SECOND_S = 2.0


# How often a line says how far a run is, where it cannot be written over the one before.
LINE_S = 30.0


class Shows(Protocol):
    def show(self, run: Run, status: Status, fresh: list[dict[str, Any]], position: str) -> None:
        """Show what is new, and how far the training is; "" where nobody knows."""


def follow(run: Run, ref: str, *, quiet: bool = False) -> int:
    """Show a run until it has ended or the user leaves; return the exit code of the command.

    Args:
        run: the run.
        ref: what this shell calls it.
        quiet: True keeps stdout free for the one object of --json.
    """
    try:
        with _shows() as shows:
            status = _watch(run, shows)
    except KeyboardInterrupt:
        return _leave(run, ref)
    return conclude(run, status, ref, quiet=quiet)


def conclude(run: Run, status: Status, ref: str, *, quiet: bool = False) -> int:
    """Print how a run ended, where it is and what can be done next; return its exit code."""
    if status.state is State.SUCCEEDED:
        metrics = run.last_metrics()
        if metrics:
            (say if quiet else answer)(numbers(metrics, between="\n"))
        say(f"{run.id} is done after {status.timings.get('finished', 0.0):.1f} s. It lives in {run.url}")
        say(f"Next: podlift status {ref} · podlift logs {ref} · podlift runs")
    else:
        say(run.why())
    return EXIT_INFRASTRUCTURE if status.exit_code is None else status.exit_code


def _watch(run: Run, shows: Shows) -> Status:
    seen, pace = 0, Pace(SystemClock(), run.plan.job["limits"].get("max_steps"))
    while True:
        status = run.status()
        records = run.metrics()
        position = "" if status.state.terminal else pace(run.progress())
        shows.show(run, status, records[seen:], position)
        seen = len(records)
        if status.state.terminal:
            return status
        time.sleep(_POLL_S)


def _leave(run: Run, ref: str) -> int:
    try:
        say(f"\nLeaving the run alone. Ctrl-C once more within {_SECOND_S:.0f} s cancels it.")
        time.sleep(_SECOND_S)
    except KeyboardInterrupt:
        say("Cancelling.")
        run.cancel()
        run.wait()
        return EXIT_CANCELLED
    say(f"It goes on. Come back: podlift wait {ref} · podlift logs {ref} -f · podlift cancel {ref}")
    return EXIT_DETACHED


@contextmanager
def _shows() -> Iterator[Shows]:
    from .live import turning  # what draws on a terminal takes longer to load than a plan takes to make

    with turning() as shows:
        yield shows or Plain(SystemClock())


class Plain:
    """One line for each change, and one now and then for how far the training is.

    Args:
        clock: what time it is.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last: str | None = None
        self._position, self._said = "", clock.monotonic()
        self._heads = Heads()

    def show(self, run: Run, status: Status, fresh: list[dict[str, Any]], position: str) -> None:
        now = f"{status.state.value} ({status.reason.value})"
        if now != self._last:
            say(f"{run.id} {now}")
            self._last = now
        for record in fresh:
            if head := self._heads.before(record, status):
                say(f"{run.id} {head}")
            say(f"{run.id} {place(record)} {numbers(record['metrics'])}")
        if position not in ("", self._position) and self._clock.monotonic() - self._said >= LINE_S:
            self._position, self._said = position, self._clock.monotonic()
            say(f"{run.id} {position}")


def on_terminal() -> bool:
    """True when a person reads stdout."""
    return sys.stdout is not None and sys.stdout.isatty()
