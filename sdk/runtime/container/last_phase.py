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
from ...spec.payload import Payload
from ...status import EXIT_CANCELLED
from ...storage import posix
from .. import last_phase, task_main
from .attempt import Container
from .tail import CopiedOutput

_log = logs.logger("runtime")
_POLL_S, _CANCEL_S = 0.05, 2.0
_DRAIN_S, _LAST_DRAIN_S = 60.0, 5.0


def run(container: Container, payload: Payload, env: Mapping[str, str], output: CopiedOutput) -> tuple[int | None, str]:
    """Run the phase; return the container's exit code, None for that of its run's success, and why it is to be repeated."""
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
        return None, ""
    if cancelled:
        return EXIT_CANCELLED, ""
    return container.terms.restart_code, last_phase.failure_of(container.paths, code)


def _is_cancelled(container: Container) -> bool:
    try:
        return container.attempts.is_cancelled()
    except PodliftError as error:
        _log.info(f"cannot check now whether the run was cancelled: {error}")
        return False
