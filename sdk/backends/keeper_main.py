"""The program of a keeper's container: it keeps a run, or a schedule's slot, until that has ended or its own time is over.

It starts from the runtime archive, and needs nothing of the machine that created it. Its launch spec names the thing to keep.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol

from .. import logs
from ..clock import Clock, SystemClock
from ..errors import InputError, PodliftError, StoreError, StoreUnavailableError, may_pass
from ..logs import logger
from ..status import EXIT_DONE, EXIT_INFRASTRUCTURE, EXIT_INPUT
from ..storage.retry import Outage

NAME = "sdk.backends.keeper_main"
_log = logger("backends.keeper")
_POLL_S, _LONGEST_POLL_S = 0.5, 5.0


class Kept(Protocol):
    """A run or a slot. The launch spec names its maker as "module:function", called with the spec, a folder and the clock."""

    @property
    def title(self) -> str:
        """The subject of a report that it cannot be reached."""

    def step(self) -> bool:
        """Take the next step; False after the last one. An error that may pass repeats it."""

    def give_up(self) -> None:
        """Record that the keeper's time is over."""

    def close(self) -> None:
        """Let go of it."""


def main(spec: Mapping[str, Any], *, home: str) -> int:
    """Keep the run or the slot of a launch spec, and return the exit code of the container."""
    logs.start(errors_apart=True)
    # Copies of runs, and the bundle.
    os.environ["XDG_CACHE_HOME"] = str(Path(home, "cache"))
    clock = SystemClock()
    module, _, name = spec["keeps"].partition(":")
    try:
        subject: Kept = getattr(importlib.import_module(module), name)(spec, home, clock)
        keep(subject, float(spec["keep_for_s"]), clock)
    except PodliftError as error:
        _log.error(str(error))
        # "Bad input" says that nothing was started: the run of a run's keeper goes on.
        return EXIT_INPUT if isinstance(error, InputError) and "run" not in spec else EXIT_INFRASTRUCTURE
    return EXIT_DONE


def keep(subject: Kept, keep_for_s: float, clock: Clock) -> None:
    """Take step after step, at most this long; an outage is waited for."""
    began, outage = clock.monotonic(), Outage(clock, f"{subject.title} cannot be reached", "It is tried again.")
    with closing(subject):
        while clock.monotonic() - began < keep_for_s:
            with outage.asking():
                if not _take_step(subject):
                    return
            # A short run gets its verdict at once, and a long run is polled rarely.
            pause_s = min(_LONGEST_POLL_S, _POLL_S + (clock.monotonic() - began) / 20)
            clock.sleep(max(pause_s, outage.pause_s))
        _log.info("the keeper's time is over; the run continues without it")
        subject.give_up()


def _take_step(subject: Kept) -> bool:
    """Take a step; a store that fails for an unknown reason counts as an outage."""
    try:
        return subject.step()
    except StoreError as error:
        if may_pass(error):
            raise StoreUnavailableError(str(error)) from error
        raise
