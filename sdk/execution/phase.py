"""Runs the last phase of a run: a process in the place of the first task's, which `runtime/last_phase.py` describes."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from ..clock import Clock
from ..job.layout import RunPaths
from ..job.payload import Payload
from ..process import spawn
from ..process.template import TaskStart
from ..records.events import PHASE_FAILED
from ..records.recorder import read_events
from ..status import EXIT_INFRASTRUCTURE
from ..storage import posix
from .ending import POLL_S
from .output import Output
from .task import TaskProcess


def run_phase(
    start: TaskStart,
    launch: Callable[[TaskStart], TaskProcess],
    output: Output,
    payload: Payload,
    paths: RunPaths,
    *,
    is_stopped: Callable[[], bool],
    clock: Clock,
) -> str | None:
    """Run the phase, and return why it has to be repeated, "" if it has not, and None if it was stopped.

    `launch` starts it like the first task, with the `start` of that task and other arguments.
    """
    path = paths.last_phase(payload.attempt)
    # The file of an earlier supervisor may be of other code.
    with suppress(FileNotFoundError):
        os.unlink(path)
    posix.put_passing(path, payload.to_json().encode())
    process = launch(replace(start, command=[*start.command[:2], path, payload.tasks[0], "last_phase"]))
    try:
        while (code := process.poll()) is None:
            if is_stopped():
                return None
            clock.sleep(POLL_S)
            output.update()
    finally:
        process.end(clock.sleep)
        spawn.end_orphans()
        output.ended(process.name)
    why = "" if code == 0 else failure_of(paths, code)
    return why and f"The training has succeeded, and its model could not be registered or evaluated: {why}"


def failure_of(paths: RunPaths, code: int) -> str:
    """Return why a phase failed, from its records; from the exit code if its process crashed or was killed."""
    events = read_events(paths, (PHASE_FAILED,)) if code == EXIT_INFRASTRUCTURE else []
    return str(events[-1].data.get("message")) if events else f"its process ended with {code}"
