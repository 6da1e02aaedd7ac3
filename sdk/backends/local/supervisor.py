"""The supervisor: the process that owns a local run. It is detached from the client and alone records the verdict."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import traceback
import uuid
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType

from ... import logs
from ...clock import Clock, SystemClock
from ...execution.agent import Agent, record_restart
from ...execution.agreement import LeaveError, OwnAgreement
from ...execution.phase import run_phase
from ...execution.standby import Standby
from ...job import cluster
from ...job.layout import RunPaths
from ...job.plan import Plan
from ...process import exit_reasons, janitor, namespaces, spawn
from ...process.janitor_watch import JanitorWatch, temporary_folders
from ...process.redirect import start
from ...process.uv import EnvironmentBuildError, EnvironmentStoppedError
from ...records import summaries, verdicts
from ...records.events import TRAINED, Event, source_of
from ...records.plans import read_plan
from ...records.recorder import Recorder, last_attempt, last_step, read_events
from ...records.verdicts import SUCCEEDED, AttemptEnd, RunEnd, ServiceAnswer, failed
from ...status import Failure, Reason, State
from ...storage import emulator, file_systems, own_folders
from ...storage.reserve import Reserve
from . import interpreter
from .host import LocalHost, forks
from .options import Local
from .stop_conditions import StopConditions

# A Unix socket's path has at most 107 bytes, and the task's name and the names that multiprocessing adds need the others.
_MAX_TEMPORARY = 55
_TAIL_LINES = 20
_log = logs.logger("backends.local")


def main(url: str) -> None:
    """Execute the plan in the run directory `url`, up to the final record."""
    # A client may ignore SIGCHLD, which is inherited. Here that would hide how a task ended.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    emulator.skip_check()
    logs.start(logs.PLAIN)
    paths, clock = RunPaths(url), SystemClock()
    temporary = _temporary(paths)
    history = History.of(read_events(paths, ("resumed", TRAINED)))
    source = source_of("supervisor", history.resumes)
    # Keeps room on the disk for the verdict, in case it fills up.
    reserve = Reserve(paths.reserve(0, source))
    recorder = Recorder(paths, source, 0, clock, reserve)
    watch: JanitorWatch | None = None
    try:
        parent = os.getpid()
        earlier = temporary_folders(paths) if history.resumes else ()
        lock = janitor.fork_supervisor(url, temporary, paths.events, earlier=earlier)
        spawn.adopt_orphans()
        watch = JanitorWatch(parent, temporary, paths.events, lock)
        recorder.record("started", supervisor=spawn.identity(os.getpid()), temporary=temporary)
        plan = read_plan(paths)
        agreed = _supervise(plan, history, temporary, watch, recorder, clock)
        run = RunEnd(events=read_events(paths), tasks=plan.tasks, service=ServiceAnswer(job="forgotten"), agreed=agreed)
        end = verdicts.verdict(run) or agreed
    except BaseException as error:
        with suppress(OSError):  # the disk of its log may be full
            traceback.print_exc()
        message = f"The supervisor failed: {_meaning(error, url)}"
        failure = Failure(task="", message=message, traceback=traceback.format_exc(), log=paths.supervisor_log)
        end = failed(Reason.INFRASTRUCTURE, failure)
    recorder.record("final", **verdicts.final(end))
    reserve.close()
    summaries.write(paths)
    if watch is not None:
        watch.stop()


def _meaning(error: BaseException, url: str) -> str:
    if isinstance(error, OSError):
        return file_systems.describe(error, url)
    hint = exit_reasons.hint(type(error).__name__, str(error))
    return f"{type(error).__name__}: {error}" + (f": {hint}." if hint else "")


@dataclass(frozen=True)
class History:
    """Counts of what happened under earlier supervisors of the run."""

    resumes: int = 0
    attempts: int = 0
    cancel_requests: int = 0
    trained: bool = False  # the last attempt has succeeded: only the last phase is left

    @staticmethod
    def of(events: Sequence[Event]) -> History:
        resumed = [event for event in events if event.kind == "resumed"]
        if not resumed:
            return History()
        last = max(resumed, key=lambda event: int(event.data["attempts"]))
        attempts = int(last.data["attempts"])
        trained = any(event.kind == TRAINED and event.attempt == attempts for event in events)
        return History(len(resumed), attempts, int(last.data["cancel_requests"]), trained)


def _supervise(
    plan: Plan, history: History, temporary: str, watch: JanitorWatch, recorder: Recorder, clock: Clock
) -> AttemptEnd:
    conditions = StopConditions(plan, _collect_signals(), clock, handled=history.cancel_requests)
    # Outside the run's folder, an existing folder belongs to another user or run.
    Path(temporary).mkdir(mode=0o700, exist_ok=temporary == plan.paths.temporary)
    if temporary != plan.paths.temporary:
        try:
            own_folders.claim(temporary, plan.paths.url)
        except OSError as error:
            _log.warning(f"If this supervisor is killed, nothing will remove {temporary!r}: {error}")
    try:
        # Requirements are downloaded before the network is isolated.
        with interpreter.chosen(plan, recorder, conditions, clock) as starter:
            names = [cluster.host_name(task, plan.run_id) for task in plan.members]
            isolated = Local.of(plan.target).network == "isolated"
            named = namespaces.enter(f"{temporary}/hosts", names, isolated=isolated)
            watch.start()
            recorder.record("placed", host_names=named, isolated=isolated, temporary=temporary)

            redirected = start.start(os.environ, temporary)
            starter = replace(starter, variables={**starter.variables, **redirected})
            with closing(Standby(forks(plan, starter, temporary))) as standby:
                host = LocalHost(plan, temporary, starter, standby, conditions, clock, named=named)
                return _trained(plan, host, standby, conditions, history)
    except EnvironmentBuildError as error:
        reason = Reason.INFRASTRUCTURE if error.transient else Reason.USER_ERROR
        return failed(reason, Failure(task="", message=str(error), log=plan.paths.environment_log))
    except EnvironmentStoppedError:
        requested = conditions.stop_requested()
        if requested is None:
            raise
        return requested[0]
    finally:
        if stays := own_folders.discard_temporary(plan.paths.url, temporary):
            _log.warning(stays)


def _collect_signals() -> list[int]:
    signals: list[int] = []

    def collect(number: int, frame: FrameType | None) -> None:
        signals.append(number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, collect)
    return signals


def _trained(plan: Plan, host: LocalHost, standby: Standby, conditions: StopConditions, earlier: History) -> AttemptEnd:
    """Run attempts as long as the policy allows it, then the last phase, and return the verdict."""
    payload = plan.payload(0)
    agreement = OwnAgreement(plan.paths, payload, plan.job.retry, conditions, host.clock, earlier=earlier.attempts)
    end = None
    try:
        if not (earlier.trained and Path(plan.paths.outputs).exists()):
            end = Agent(host, payload, agreement).run()
        while end is None or (end.state is State.SUCCEEDED and plan.model):
            # The evaluation may need the memory.
            standby.close()
            number = last_attempt(plan.paths)
            end = _finished(plan, number, host, conditions)
            if end.state is State.SUCCEEDED:
                return end
            end = agreement.conclude(number, end, step=last_step(plan.paths, number, plan.tasks[0]))
            if end.restart:
                record_restart(end, Recorder(plan.paths, "supervisor", number, host.clock, continued=True))
                agreement.wait(end.delay_s)
                end = None
    except LeaveError:
        if (requested := conditions.stop_requested()) is None:
            raise
        return requested[0]
    return end


def _finished(plan: Plan, attempt: int, host: LocalHost, conditions: StopConditions) -> AttemptEnd:
    """Run the last phase after an attempt, and return the verdict on the run."""
    paths, clock, requested = plan.paths, host.clock, conditions.stop_requested
    if not any(event.attempt == attempt for event in read_events(paths, (TRAINED,))):
        Recorder(paths, "supervisor", attempt, clock, continued=True).record(TRAINED)
    with closing(host.output(attempt, f"{attempt}-phase")) as output:
        output.open()
        begin, payload = host.phase_start(attempt, output), plan.payload(attempt)
        why = run_phase(
            begin, host.start_again, output, payload, paths, is_stopped=lambda: requested() is not None, clock=clock
        )
    if why is None and (stopped := requested()) is not None:
        return stopped[0]
    if not why:
        return SUCCEEDED
    first = plan.tasks[0]
    failure = Failure(task="", message=why, traceback=output.last_lines(first), log=output.log(first))
    return failed(Reason.INFRASTRUCTURE, failure)


def _temporary(paths: RunPaths) -> str:
    """Return the folder for temporary files: in the run's folder, unless paths of Unix sockets would be too long there."""
    if len(paths.temporary.encode()) <= _MAX_TEMPORARY:
        return paths.temporary
    return f"{tempfile.gettempdir()}/podlift-{uuid.uuid4().hex[:12]}"


if __name__ == "__main__":
    main(sys.argv[1])
