"""The last phase of a run in the first task's container: what `runtime/last_phase.py` does, once the task's process is gone."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

from ... import logs
from ...errors import PodliftError
from ...process.template import TaskStart
from ...records.events import PHASE_FAILED
from ...records.recorder import read_events
from ...spec.layout import RunPaths
from ...spec.payload import Payload
from ...status import EXIT_CANCELLED
from ...storage import posix
from .. import task_main
from .attempt import Container
from .tail import CopiedOutput

_log = logs.logger("runtime")
_POLL_S, _CANCEL_S = 0.05, 2.0
_DRAIN_S, _LAST_DRAIN_S = 60.0, 5.0


def run(container: Container, payload: Payload, env: Mapping[str, str], output: CopiedOutput) -> int | None:
    """Run the phase; return the container's exit code, None for that of its run's success."""
    path, process = container.paths.last_phase(payload.attempt), container.process
    posix.put_passing(path, payload.to_json().encode())
    start = TaskStart(
        task=container.task,
        command=[sys.executable, str(Path(task_main.__file__)), path, container.task, "last_phase"],
        env=dict(env),
        cwd=os.path.dirname(path),
        log=output.paths[0],
        errors=output.paths[1],
    )
    process.start(start, None)
    output.start()
    cancelled, due = False, container.clock.monotonic()
    while (code := process.poll()) is None:
        if container.clock.monotonic() >= due and not cancelled:
            due += _CANCEL_S
            if cancelled := _is_cancelled(container):
                process.send(signal.SIGKILL)
        container.clock.sleep(_POLL_S)
    output.finish(_LAST_DRAIN_S if process.stop_requested else _DRAIN_S)
    if code == 0:
        return None
    return EXIT_CANCELLED if cancelled else container.terms.restart_code


def _is_cancelled(container: Container) -> bool:
    try:
        return container.attempts.is_cancelled()
    except PodliftError as error:
        _log.info(f"cannot check now whether the run was cancelled: {error}")
        return False


def failure_of(paths: RunPaths) -> str:
    """Return why the last phase failed."""
    found = read_events(paths, (PHASE_FAILED,))
    return str(found[-1].data.get("message")) if found else "its process was killed"
