"""What the keeper's container runs: it waits for the run as a client does, until the run has ended or its time is over."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from typing import Any

from ... import logs
from ...clock import Clock, SystemClock
from ...errors import PodliftError, StoreError, UnavailableError, may_pass
from ...logs import logger
from ...records.plans import read_plan
from ...records.recorder import has_ended
from ...records.sync.index import SyncedRun
from ...spec.layout import RootPaths, RunPaths
from ...spec.plan import Plan
from ...status import EXIT_DONE, EXIT_INFRASTRUCTURE
from .run import VertexRun
from .start_run import Archives

_log = logger("backends.keeper")
_POLL_S = 5.0
_REPORT_S = 600.0


def main(spec: Mapping[str, Any], *, home: str) -> int:
    """Wait for the run, and return the exit code of the container."""
    logs.start(errors_apart=True)
    clock = SystemClock()
    try:
        plan = _plan(str(spec["run"]), home, clock)
        archives = Archives(runtime=spec["runtime"]["sha256"], entrypoint=spec["entrypoint"])
        keep(VertexRun(plan, clock, archives), plan, float(spec["keep_for_s"]), clock)
    except PodliftError as error:
        _log.error(str(error))
        return EXIT_INFRASTRUCTURE
    return EXIT_DONE


def _plan(url: str, home: str, clock: Clock) -> Plan:
    root = RunPaths(url).root
    paths = RootPaths(posixpath.join(home, "root")).run(RunPaths(url).run_id)
    copy = SyncedRun(paths, url, clock)
    copy.pull_plan()
    copy.pull_resumes()
    return read_plan(paths, root)


def keep(run: VertexRun, plan: Plan, keep_for_s: float, clock: Clock) -> None:
    """Wait until the run has ended, at most this long; a service that cannot be reached is waited for."""
    until, reported = clock.monotonic() + keep_for_s, -_REPORT_S
    _log.info(f"waiting for the run {plan.run_id}: its next jobs are submitted here")
    with run.attending() as attend:
        while clock.monotonic() < until:
            try:
                attend()
                if has_ended(plan.paths) or not run.supervised():
                    _log.info("the run has ended")
                    return
            except (UnavailableError, StoreError) as error:
                if not may_pass(error):
                    raise
                if clock.monotonic() - reported >= _REPORT_S:
                    reported = clock.monotonic()
                    _log.info(f"the run cannot be seen now: {error}")
            clock.sleep(_POLL_S)
    _log.info("the keeper's time is over; the run goes on without it")
