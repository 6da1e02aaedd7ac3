"""The process that owns a local run: detached from whoever submitted it, the only one that gives the verdict."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import sys
import tempfile
import traceback
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import FrameType

from ...clock import Clock, SystemClock
from ...process import exit_reasons, janitor, namespaces, spawn
from ...process.janitor_watch import Watch
from ...process.leftovers import temporary_folders
from ...process.pip import EnvironmentBuildError, EnvironmentStoppedError
from ...process.redirect import start
from ...records import summaries
from ...records.events import Event, source_of
from ...records.plans import read_plan
from ...records.recorder import Recorder, last_step, read_events
from ...records.restarts import Ended, decide
from ...spec import cluster
from ...spec.layout import RunPaths
from ...spec.plan import Plan
from ...status import Failure, Reason, State
from ...storage import emulator, os_errors
from ...storage.reserve import Reserve
from . import interpreter
from .ending import Ending, Verdict, failed
from .gang import Gang

# What is left of 107 bytes when a task's name and the folder and file that multiprocessing makes are put behind it.
_MAX_TEMPORARY = 55
_POLL_S = 0.05


def main(url: str) -> None:
    """Run the plan that lies in the run directory `url`, to its final record."""
    # A client may ignore the end of its children, and that is inherited: here it would hide how a task ended.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    emulator.be_patient()
    paths, clock = RunPaths(url), SystemClock()
    temporary = _temporary(paths)
    before = Before.of(read_events(paths, ("resumed",)))
    source = source_of("supervisor", before.resumes)
    # What the disk does not take when it is full: how the run ended, above all.
    reserve = Reserve(paths.reserve(0, source))
    recorder = Recorder(paths, source, 0, clock, reserve)
    watch: Watch | None = None
    try:
        first = os.getpid()
        left = temporary_folders(paths) if before.resumes else ()
        lock = janitor.leave_behind(url, temporary, paths.events, before=left)
        spawn.adopt_orphans()
        watch = Watch(first, temporary, paths.events, lock)
        recorder.record("started", supervisor=spawn.identity(os.getpid()), temporary=temporary)
        plan = read_plan(paths)
        verdict = _supervise(plan, before, temporary, watch, recorder, clock)
    except BaseException as error:
        with suppress(OSError):  # its log is on a disk that may be full
            traceback.print_exc()
        message = f"The supervisor failed: {_meaning(error, url)}"
        failure = Failure(task="", message=message, traceback=traceback.format_exc(), log=paths.supervisor_log)
        verdict = Verdict(state=State.FAILED, reason=Reason.INFRASTRUCTURE, failure=failure)
    failure_data = asdict(verdict.failure) if verdict.failure else None
    recorder.record("final", state=verdict.state.value, reason=verdict.reason.value, failure=failure_data)
    reserve.close()
    summaries.write(paths)
    if watch is not None:
        watch.stop()


def _meaning(error: BaseException, url: str) -> str:
    if isinstance(error, OSError):
        return os_errors.meaning(error, url)
    hint = exit_reasons.hint(type(error).__name__, str(error))
    return f"{type(error).__name__}: {error}" + (f": {hint}." if hint else "")


@dataclass(frozen=True)
class Before:
    """What earlier supervisors of the run have left.

    Args:
        resumes: how many there were.
        attempts: how often they started the tasks.
        wishes: how often they were asked to cancel.
    """

    resumes: int = 0
    attempts: int = 0
    wishes: int = 0

    @staticmethod
    def of(resumed: Sequence[Event]) -> Before:
        """Read it from the records of kind "resumed"."""
        if not resumed:
            return Before()
        last = max(resumed, key=lambda event: int(event.data["attempts"]))
        return Before(len(resumed), int(last.data["attempts"]), int(last.data["cancel_requests"]))


def _supervise(plan: Plan, before: Before, temporary: str, watch: Watch, recorder: Recorder, clock: Clock) -> Verdict:
    told: list[int] = []

    def remember(number: int, frame: FrameType | None) -> None:
        told.append(number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, remember)
    ending = Ending(plan, told, clock, fulfilled=before.wishes)
    # Outside of the run's folder, what is there already is somebody else's.
    Path(temporary).mkdir(mode=0o700, exist_ok=temporary == plan.paths.temporary)
    try:
        # Before the network is closed: what is to be installed comes from outside.
        with interpreter.chosen(plan, recorder, ending, clock) as starter:
            names = [cluster.host_name(task, plan.run_id) for task in plan.members]
            isolated = plan.backend_options["network"] == "isolated"
            named = namespaces.enter(f"{temporary}/hosts", names, isolated=isolated)
            watch.start()
            recorder.record("placed", host_names=named, isolated=isolated, temporary=temporary)

            to_emulator = start.start(os.environ, temporary)
            starter = replace(starter, variables={**starter.variables, **to_emulator})

            def attempt(number: int) -> Gang:
                return Gang(
                    plan, number, named=named, temporary=temporary, interpreter=starter, ending=ending, clock=clock
                )

            return _attempts(plan, attempt, ending, clock, first=before.attempts + 1)
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


def _attempts(plan: Plan, gang: Callable[[int], Gang], ending: Ending, clock: Clock, *, first: int) -> Verdict:
    """Start the tasks, and again as long as the policy wants it; return the verdict on the last attempt."""
    history: list[Ended] = []
    policy = plan.job["retry"]
    for number in itertools.count(first):
        tasks = gang(number)
        verdict = tasks.run()
        history.append(
            Ended(state=verdict.state, reason=verdict.reason, step=last_step(plan.paths, number, plan.tasks[0]))
        )
        decision = decide(history, policy, drill=bool(plan.drill))
        if not decision.restart:
            return verdict if not decision.why else _with_note(verdict, decision.why)
        failure = asdict(verdict.failure) if verdict.failure else None
        tasks.note(
            "restarting", reason=verdict.reason.value, failure=failure, why=decision.why, delay_s=decision.delay_s
        )
        until = clock.monotonic() + decision.delay_s
        while (asked := ending.asked()) is None and clock.monotonic() < until:
            clock.sleep(_POLL_S)
        if asked is not None:
            return asked[0]
    raise AssertionError("attempts do not run out")


def _with_note(verdict: Verdict, why: str) -> Verdict:
    failure = verdict.failure or Failure(task="", message="")
    return replace(verdict, failure=replace(failure, message=f"{failure.message} {why}".strip()))


def _temporary(paths: RunPaths) -> str:
    """Name the folder for temporary files: in the run's own, unless a Unix socket's path (107 bytes) would not fit there."""
    inside = paths.temporary
    return (
        inside if len(inside.encode()) <= _MAX_TEMPORARY else f"{tempfile.gettempdir()}/podlift-{uuid.uuid4().hex[:12]}"
    )


if __name__ == "__main__":
    main(sys.argv[1])
