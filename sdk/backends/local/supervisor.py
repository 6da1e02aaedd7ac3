"""The process that owns a local run: detached from whoever submitted it, the only one that gives the verdict."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import traceback
from dataclasses import asdict
from pathlib import Path
from types import FrameType

from ... import cluster, processes
from ...clock import Clock, SystemClock
from ...layout import RunPaths
from ...planner import Plan
from ...status import Failure, Reason, State
from ...storage.records import Recorder
from . import interpreter, namespaces
from .ending import Ending, Verdict, failed
from .gang import Gang
from .pip import EnvironmentBuildError, EnvironmentStoppedError

# What is left of 107 bytes when a task's name and the folder and file that multiprocessing makes are put behind it.
_MAX_TEMPORARY = 55


def main(url: str) -> None:
    """Run the plan that lies in the run directory `url`, to its final record."""
    # A client may ignore the end of its children, and that is inherited: here it would hide how a task ended.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    processes.adopt_orphans()
    clock = SystemClock()
    paths = RunPaths(url)
    recorder = Recorder(paths, "supervisor", 0, clock)
    recorder.record("started", supervisor=processes.identity(os.getpid()))
    try:
        verdict = _supervise(Plan.from_json(Path(paths.plan).read_bytes(), paths.plan), recorder, clock)
    except BaseException as error:
        traceback.print_exc()
        message = f"The supervisor failed: {type(error).__name__}: {error}"
        failure = Failure(task="", message=message, traceback=traceback.format_exc(), log=paths.supervisor_log)
        verdict = Verdict(state=State.FAILED, reason=Reason.INFRASTRUCTURE, failure=failure)
    failure_data = asdict(verdict.failure) if verdict.failure else None
    recorder.record("final", state=verdict.state.value, reason=verdict.reason.value, failure=failure_data)


def _supervise(plan: Plan, recorder: Recorder, clock: Clock) -> Verdict:
    told: list[int] = []

    def remember(number: int, frame: FrameType | None) -> None:
        told.append(number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, remember)
    ending = Ending(plan, told, clock)
    temporary = _temporary(plan)
    try:
        # Before the network is closed: what is to be installed comes from outside.
        with interpreter.chosen(plan, recorder, ending, clock) as starter:
            names = [cluster.host_name(task, plan.run_id) for task in plan.members]
            isolated = plan.job["resources"]["network"] == "isolated"
            named = namespaces.enter(f"{temporary}/hosts", names, isolated=isolated)
            recorder.record("placed", host_names=named, isolated=isolated, temporary=temporary)
            gang = Gang(plan, 1, named=named, temporary=temporary, interpreter=starter, ending=ending, clock=clock)
            return gang.run()
    except EnvironmentBuildError as error:
        reason = Reason.INFRASTRUCTURE if error.transient else Reason.USER_ERROR
        return failed(reason, Failure(task="", message=str(error), log=plan.paths.environment_log))
    except EnvironmentStoppedError:
        asked = ending.asked()
        if asked is None:
            raise
        return asked[0]
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _temporary(plan: Plan) -> str:
    """Make the folder for temporary files: in the run's own, unless a Unix socket's path (107 bytes) would not fit there."""
    inside = plan.paths.temporary
    if len(inside.encode()) <= _MAX_TEMPORARY:
        Path(inside).mkdir(exist_ok=True)
        return inside
    return tempfile.mkdtemp(prefix="podlift-")


if __name__ == "__main__":
    main(sys.argv[1])
