"""One attempt of a run: starts its tasks, watches them, finds out why they ended, and leaves no process running."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

from ...clock import Clock
from ...execution import ending
from ...execution.ending import DECIDED_GRACE_S, POLL_S, STACKS_S, AttemptEnd, failed
from ...job import cluster
from ...job.payload import TASK_RESTARTS
from ...job.plan import Plan
from ...job.policies import Local
from ...logs import logger
from ...process import cores, exit_reasons, janitor, machine, spawn, task_environment
from ...process.cores import Division
from ...process.exit_reasons import MemoryWatch, OutOfMemory
from ...process.hang import Activity, Hang, HangDetector, Pauses, blame
from ...process.line_pipe import LinePipe
from ...process.log_index import LogIndexWriter
from ...process.log_tail import last_lines
from ...process.machine import Gpus, Sampler
from ...process.ports import PortReservation
from ...process.template import TaskStart
from ...records import outputs
from ...records.accounts import ACCOUNTED
from ...records.events import (
    TASK_RESTARTING,
    TRAINS,
    Event,
    untrained,
)
from ...records.recorder import Recorder, accounts, last_step, read_events, read_progress, sweep
from ...records.restarts import Decision, EndedAttempt
from ...runtime import secret_values
from ...status import Failure, Reason, State
from ...storage import file_systems, own_folders, posix, reserve
from ...storage.reserve import Reserve
from ...tracebacks import last_error
from .interpreter import Interpreter
from .stop_conditions import StopConditions
from .template import GangLaunch, Standby

_log = logger("backends.local")

# SIGKILL takes effect at once, except on another user's process.
_KILL_S = 10.0
_TAIL_LINES, _SEARCHED_LINES = 20, 1000
# How often to check whether a process is wanted that waits for the next attempt.
_STANDBY_S = 1.0


@dataclass(frozen=True, kw_only=True)
class Place:
    """What all attempts of a supervisor share."""

    temporary: str  # folder of the TMPDIRs
    interpreter: Interpreter
    standby: Standby
    conditions: StopConditions
    clock: Clock


class LocalGang:
    def __init__(
        self, plan: Plan, place: Place, attempt: int, alone: Callable[[EndedAttempt], Decision], *, named: bool
    ) -> None:
        self._plan = plan
        self._alone = alone  # decides whether a task that has ended is restarted while the others go on
        self._temporary, self._interpreter = place.temporary, place.interpreter
        self._conditions, self._clock, self._standby = place.conditions, place.clock, place.standby
        self._attempt, clock = attempt, place.clock
        self._reserve = Reserve(plan.paths.reserve(attempt, "supervisor"))
        self._recorder = Recorder(plan.paths, "supervisor", attempt, clock, self._reserve)
        self._reservation = PortReservation(plan.tasks)
        self._starts: dict[str, TaskStart] = {}
        self._tasks: dict[str, spawn.Process] = {}
        self._codes: dict[str, int] = {}
        # Of tasks that may be restarted alone, until that is decided.
        self._unrecorded: list[str] = []
        # When tasks are due that are restarted alone, and how often that has happened.
        self._due: dict[str, float] = {}
        self._restarts: Counter[str] = Counter()
        # Failures of tasks that were restarted alone since: the source and the number of their records.
        self._settled: set[tuple[str, int]] = set()
        self._cpu_limits: dict[str, float | None] = {}
        self._echo_until: float | None = None
        self._pauses = Pauses(clock)
        self._survivors_reported = False
        # Made before the tasks start, because it reports changes since then.
        self._memory = MemoryWatch()
        self._hidden = HiddenLogs.of(plan, attempt, f"{place.temporary}/{attempt}-output")
        gpus = Gpus()
        self._sampler = Sampler(plan.paths, attempt, clock, gpus)
        self._idle = machine.IdleWatch(plan.job.limits.idle_accelerator_s, gpus, self._recorder, clock)
        self._log_index = LogIndexWriter(plan.paths, attempt, plan.tasks, clock)
        self._host: Callable[[cluster.Task], str] = (
            (lambda task: cluster.host_name(task, plan.run_id)) if named else (lambda task: "localhost")
        )

    def run(self) -> AttemptEnd:
        """Start the tasks. Return the verdict once they are gone and their outputs are collected."""
        try:
            self._start()
            verdict, asked_s = self._watch()
            saves = verdict.state is State.CHECKPOINTED
            grace_s = self._let_end(verdict) if asked_s is None and not saves else asked_s or 0.0
            self._record_exits()
            self._recorder.record("stopping", state=verdict.state.value, reason=verdict.reason.value)
            if asked_s is None and saves:
                grace_s = self._let_end(verdict)
            if verdict.state is State.CANCELLED:
                self._await_step_boundary(grace_s)
            if not ending.may_save(verdict):
                # It exists already, or the disk is full and tasks may save for nothing.
                with suppress(OSError):
                    posix.put_passing(self._plan.paths.decided(self._attempt), b"{}")
            self._stop(grace_s)
            return verdict
        finally:
            self._stop(0.0)
            self._record_accounts()
            self._hidden.close()
            self._log_index.close()
            sweep(self._plan.paths, self._plan.tasks)
            reserve.sweep(self._plan.paths.reserves, frozenset(self._plan.tasks), self._attempt)
            self._reservation.close()
            outputs.collect(self._plan.paths, self._attempt, self._plan.tasks[0], self._bundle_files, self._recorder)
            self._reserve.close()

    def _record_accounts(self) -> None:
        found = accounts(self._plan.paths, self._attempt, self._plan.tasks)
        # The verdict does not depend on it.
        with suppress(OSError):
            self._recorder.record(ACCOUNTED, tasks={task: asdict(account) for task, account in found.items()})

    def _start(self) -> None:
        plan, paths = self._plan, self._plan.paths
        addresses = {task.name: f"{self._host(task)}:{self._reservation.ports[task.name]}" for task in plan.members}
        # Threads of the user's own are not squeezed into a part of the CPUs.
        wanted = "all" if cores.INTRA in plan.job.env else Local.of(plan.target).cores
        division = cores.divide(plan.tasks, cores.available(), wanted)
        starts = [self._task(task, addresses, division) for task in plan.members]
        # Importing begins here, and everything below happens at the same time.
        self._starts = {start.task: start for start in starts}
        imports = f"{self._temporary}/{self._attempt}-imports.log"
        with closing(GangLaunch(plan, starts, self._interpreter, imports, self._standby)) as launch:
            payload = replace(plan.payload(self._attempt), cores=str(division))
            posix.put_passing(paths.payload(self._attempt), payload.to_json().encode())
            for folder in (paths.model, paths.checkpoints, paths.tensorboard):
                Path(folder).mkdir(parents=True, exist_ok=True)
            for task in plan.tasks:
                log, work = Path(paths.log(self._attempt, task)), Path(paths.work(self._attempt, task))
                for parent in (
                    work.parent,
                    Path(task_environment.scratch(self._temporary, self._attempt, task)),
                    log.parent,
                ):
                    parent.mkdir(parents=True, exist_ok=True)
            self._hidden.open()
            self._tasks = launch.finish(lambda: self._conditions.stop_requested() is not None)
        pids = {name: process.pid for name, process in self._tasks.items()}
        self._recorder.record("attempt_started", addresses=addresses, pids=pids, why_fresh=launch.why_fresh)

    def _task(self, task: cluster.Task, addresses: Mapping[str, str], division: Division) -> TaskStart:
        plan, paths = self._plan, self._plan.paths
        variables = task_environment.environment(plan, self._attempt, task, addresses, self._temporary)
        return TaskStart(
            task=task.name,
            command=self._interpreter.command(plan, self._attempt, task.name),
            env={
                **division.variables(task.name),
                **self._interpreter.inherited(plan),
                **variables,
                "PODLIFT_PARENT": str(os.getpid()),
            },
            cwd=str(Path(paths.work(self._attempt, task.name)).parent),
            log=self._hidden.target(task.name),
            cpus=division.shares[task.name].cpus,
        )

    def _watch(self) -> tuple[AttemptEnd, float | None]:
        """Wait for the end of the attempt. Return it and, if it was asked for, how many seconds the tasks have to stop."""
        self._pauses.begin()
        limit_s = self._plan.job.limits.hang_s
        detector = HangDetector(limit_s, self._activity, self._clock)
        standby_due = self._clock.monotonic()
        while True:
            self._reap(may_restart=True)
            if self._clock.monotonic() >= standby_due:
                standby_due += _STANDBY_S
                if self._steps(self._plan.tasks[0]):
                    self._standby.prepare(list(self._starts.values()))
            verdict = self._tasks_verdict()
            if verdict is None:
                self._start_due()
            else:
                verdict = self._restart_alone(verdict)
            if verdict is not None and verdict.state is not State.FAILED and self._stop_agreed():
                # The tasks exited on request, before this loop saw the request.
                return self._conditions.stop_requested() or (verdict, 0.0)
            if verdict is not None:
                return verdict, None
            if (requested := self._conditions.stop_requested()) is not None:
                return requested
            if self._idle.is_idle(self._visible):
                return failed(Reason.ACCELERATOR_IDLE, self._idle.failure), None
            activity = detector.hang()
            if activity is not None and limit_s is not None:
                steps = dict(zip(cluster.in_step(self._plan.tasks), activity.beats, strict=True))
                return self._hung(blame(limit_s, steps)), None
            self._clock.sleep(POLL_S)

    def _activity(self) -> Activity:
        paths, tasks = self._plan.paths, cluster.in_step(self._plan.tasks)
        return Activity(
            beats=tuple(read_progress(paths.progress(self._attempt, task))[1] for task in tasks),
            output_bytes=sum(_size(paths.log(self._attempt, task)) for task in tasks),
            cpu_s=sum(spawn.cpu_s(process.pid) for process in self._tasks.values()),
        )

    def _let_end(self, end: AttemptEnd) -> float:
        """Let the other tasks end by themselves for as long as they may. Return how many seconds they have to stop then."""
        begun, until = self._clock.monotonic(), float("inf")
        while True:
            ways = self._ways(end)
            now = self._clock.monotonic()
            if (asked := self._conditions.stop_requested()) is not None:
                # A save of all tasks has what a stop would give it.
                until = min(until, now + asked[1] if end.state is State.CHECKPOINTED else now)
            if now >= min(until, begun + max((way.wait_s for way in ways), default=0.0)):
                break
            self._clock.sleep(POLL_S)
            self._reap()
        if end.state is State.SUCCEEDED:
            self._report_untrained()
        return max((way.grace_s for way in ways), default=0.0)

    def _ways(self, end: AttemptEnd) -> list[ending.Stop]:
        """Return how each of the running tasks is ended."""
        succeeded = end.state is State.SUCCEEDED
        done = self._done() if succeeded else ()
        records = [] if succeeded else read_events(self._plan.paths, ("failed", "left"))
        return [
            ending.stop(
                end,
                task,
                self._plan.tasks,
                done=task in done,
                saving_s=ending.announced_s([e for e in records if (e.attempt, e.source) == (self._attempt, task)]),
                steps=not succeeded and self._steps(task),
                host=ending.WHOLE,
                limits=self._plan.job.limits,
            )
            for task in self._tasks.keys() - self._codes.keys()
        ]

    def _steps(self, task: str) -> bool:
        return bool(read_progress(self._plan.paths.progress(self._attempt, task))[1])

    def _done(self) -> set[str]:
        paths = self._plan.paths
        found = [*posix.list_names(paths.events), *(name for name, _ in reserve.read(paths.reserves))]
        names = [name.split(".") for name in found if name.endswith(".done.json")]
        return {source for attempt, source, *_ in names if int(attempt) == self._attempt}

    def _stop_agreed(self) -> bool:
        folder = Path(self._plan.paths.rendezvous(self._attempt, 0)).parent
        return any(
            json.loads((folder / name).read_bytes())["action"] == "stop" for name in posix.list_names(str(folder))
        )

    def _bundle_files(self) -> dict[str, tuple[int, str]]:
        return {file.path: (file.size, file.sha256) for file in self._plan.code.files}

    def _hung(self, hang: Hang) -> AttemptEnd:
        """Make every running task write its Python stacks to its log, and return the verdict."""
        log = self._plan.paths.log(self._attempt, hang.task)
        for name, process in self._tasks.items():
            if name not in self._codes:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(process.pid, signal.SIGUSR2)
        self._clock.sleep(STACKS_S)
        failure = Failure(task=hang.task, message=hang.message, traceback=last_lines(log, _TAIL_LINES), log=log)
        return failed(Reason.HUNG, failure)

    def _tasks_verdict(self) -> AttemptEnd | None:
        """Return the end that follows from the tasks' records and exit codes, or None."""
        tasks = self._plan.tasks
        view = ending.View(tasks=tasks, own=tasks, codes=self._codes, failed=self._failure_records())
        cause = ending.cause(view)
        if cause is None:
            return None
        if cause.is_asked:
            return ending.explained(cause, view, self)
        if wait_s := ending.echo_s(replace(view, done=self._done()), ending.WHOLE, self._plan.job.limits):
            # The peer's own failure will be recorded in a moment.
            self._echo_until = self._echo_until or self._clock.monotonic() + wait_s
            if self._clock.monotonic() < self._echo_until:
                return None
        if tasks[0] not in self._codes and spawn.is_exiting(self._tasks[tasks[0]]):
            # Others may fail because it exited. Its exit code will be known in a moment.
            return None
        known = len(self._codes)
        self._reap(may_restart=True)
        # A peer that died after the last look at the exits may be the reason.
        return ending.explained(cause, view, self) if len(self._codes) == known else None

    def _restart_alone(self, verdict: AttemptEnd) -> AttemptEnd | None:
        """Return None if the task that caused this verdict is restarted alone, else the verdict."""
        task = ending.restarts_alone(verdict, self._plan.tasks, self._codes)
        if not task or self._stop_agreed() or self._conditions.stop_requested() is not None:
            return verdict
        step = last_step(self._plan.paths, self._attempt, self._plan.tasks[0])
        now = self._clock.now()
        ended = EndedAttempt(state=State.FAILED, reason=verdict.reason, step=step, task=task, time=now)
        decision = self._alone(ended)
        if not decision.restart:
            return replace(verdict, alone=task)
        code = self._forget(task)
        self._settled |= {(event.source, event.sequence) for event in self._failure_records() if event.source == task}
        failure = asdict(verdict.failure) if verdict.failure else None
        found = {"code": code, "reason": verdict.reason.value, "step": step, "failure": failure}
        self._recorder.record(TASK_RESTARTING, task=task, why=decision.why, delay_s=decision.delay_s, **found)
        self._due[task] = self._clock.monotonic() + decision.delay_s
        return None

    def _is_alone(self, task: str) -> bool:
        return cluster.restarts_alone(task, self._plan.tasks)

    def _forget(self, task: str) -> int:
        """End the rest of a task's process, remove its files, and return its exit code."""
        process = self._tasks.pop(task)
        until = self._clock.monotonic() + DECIDED_GRACE_S
        # It has recorded its failure, and may be about to exit.
        while not spawn.has_exited(process) and self._clock.monotonic() < until:
            self._clock.sleep(POLL_S)
        spawn.end_group(process)
        code, output = process.wait(), self._starts[task].log
        # Those of the others stay.
        spawn.end_orphans(lambda pid: janitor.is_of_task(pid, task, output))
        self._cpu_limits.pop(task, None)
        self._codes.pop(task, None)
        self._unrecorded = [name for name in self._unrecorded if name != task]
        self._echo_until = None
        shutil.rmtree(self._plan.paths.work(self._attempt, task), ignore_errors=True)
        scratch = task_environment.scratch(self._temporary, self._attempt, task)
        inside = os.path.relpath(scratch, self._temporary)
        if failed := own_folders.discard_temporary(self._plan.paths.url, self._temporary, inside):
            _log.warning(failed)
        Path(scratch).mkdir(parents=True, exist_ok=True)
        return code

    def _start_due(self) -> None:
        """Start the tasks that are restarted alone, at their old addresses, so that the others find them again."""
        for task in [task for task, due in self._due.items() if self._clock.monotonic() >= due]:
            del self._due[task]
            self._restarts[task] += 1
            start = self._starts[task]
            again = replace(start, env={**start.env, TASK_RESTARTS: str(self._restarts[task])})
            self._tasks[task] = again.spawn()
            # All ends until now are explained. What killed this task does not explain a later one.
            self._memory = MemoryWatch()
            self._recorder.record("task_started", task=task, pid=self._tasks[task].pid)

    def _record_exits(self) -> None:
        for name in self._unrecorded:
            self._recorder.record("exited", task=name, code=self._codes[name])
        self._unrecorded = []

    def _reap(self, *, may_restart: bool = False) -> None:
        self._log_index.update()
        self._sampler.update(self._running)
        self._pauses.update()
        for name, process in self._tasks.items():
            if name not in self._codes and spawn.has_exited(process):
                # The task's own children must not outlive it.
                spawn.end_group(process)
                self._cpu_limits[name] = exit_reasons.cpu_limit(process.pid)
                self._codes[name] = self._code(name, process.wait())
                self._unrecorded.append(name)
        # The exit of a task that is restarted alone is recorded with its restart.
        if not (may_restart and all(self._codes[name] and self._is_alone(name) for name in self._unrecorded)):
            self._record_exits()

    def _code(self, name: str, code: int) -> int:
        """Return the exit code of a task, 0 if it crashed once everything of it was done."""
        others = cluster.end_by_themselves(self._plan.tasks) if name == self._plan.tasks[0] else ()
        crashed = exit_reasons.crashed_at_exit(name, code, self._done(), others)
        if crashed:
            self._report(crashed)
        return 0 if crashed else code

    def _report(self, finding: str) -> None:
        _log.info(finding)
        self._recorder.record("finding", text=finding)

    def _report_untrained(self) -> None:
        first, records = self._plan.tasks[0], read_events(self._plan.paths, TRAINS)
        finding = untrained(
            records, last_error(last_lines(self._plan.paths.log(self._attempt, first), _SEARCHED_LINES))
        )
        if finding:
            self._report(finding)

    def _running(self) -> list[tuple[str, int, str | None]]:
        running = self._tasks.keys() - self._codes.keys()
        return [(name, self._tasks[name].pid, self._starts[name].env.get("CUDA_VISIBLE_DEVICES")) for name in running]

    def _visible(self) -> list[str | None]:
        training = machine.watched(self._plan.tasks)
        return [visible for name, _, visible in self._running() if name in training]

    def _failure_records(self) -> list[Event]:
        names = posix.list_names(self._plan.paths.events)
        if not any(self._codes.values()) and not any(name.endswith(".failed.json") for name in names):
            return []
        events = [event for event in read_events(self._plan.paths, ("failed",)) if event.attempt == self._attempt]
        # Not by their times: a program may replace the clock.
        return [event for event in events if (event.source, event.sequence) not in self._settled]

    # --- What a failure means: `ending.Evidence`

    def memory(self, task: str) -> OutOfMemory:
        return self._memory.ended(self._tasks[task].pid)

    def cpu_limit(self, task: str) -> float | None:
        return self._cpu_limits.get(task)

    def lost_peers(self, message: str) -> str:
        stopped = [name for name, process in self._tasks.items() if spawn.is_stopped(process.pid)]
        return exit_reasons.lost_peers_message(message, stopped=stopped, paused_s=self._pauses.longest_s)

    def last_lines(self, task: str) -> str:
        return last_lines(self.log(task), _TAIL_LINES)

    def log(self, task: str) -> str:
        return self._plan.paths.log(self._attempt, task)

    def full_disk(self) -> str:
        folders = (self._plan.paths.url, self._temporary)
        return next(filter(None, map(file_systems.out_of_space, folders)), "")

    def _await_step_boundary(self, grace_s: float) -> None:
        """Wait for tasks that check for a stop request between steps. Tasks without a reported step do not check."""
        since = self._clock.monotonic()
        stepping = cluster.in_step(self._plan.tasks)
        stepped = any(read_progress(self._plan.paths.progress(self._attempt, task))[1] for task in stepping)
        while stepped and not self._codes.keys() >= set(stepping):
            cancel_grace_s = self._conditions.cancel_grace_s()
            if self._clock.monotonic() >= since + (grace_s if cancel_grace_s is None else min(grace_s, cancel_grace_s)):
                return
            self._clock.sleep(POLL_S)
            self._reap()

    def _stop(self, grace_s: float) -> None:
        """End all processes of all tasks: SIGTERM, `grace_s` seconds, SIGKILL."""
        running = [process for name, process in self._tasks.items() if name not in self._codes]
        for process in running:
            spawn.signal_group(process, signal.SIGTERM)
        since = self._clock.monotonic()
        while len(self._codes) < len(self._tasks) and self._clock.monotonic() < since + grace_s:
            self._clock.sleep(POLL_S)
            self._reap()
            cancel_grace_s = self._conditions.cancel_grace_s()
            grace_s = grace_s if cancel_grace_s is None else min(grace_s, cancel_grace_s)
        for process in running:
            if process.returncode is None:
                spawn.end_group(process)
        # Only _reap waits for tasks: it ends a task's group before the group's id can be reused.
        until = self._clock.monotonic() + _KILL_S
        while len(self._codes) < len(self._tasks) and self._clock.monotonic() < until:
            self._reap()
            self._clock.sleep(POLL_S / 10)
        self._report_survivors(spawn.end_orphans())

    def _report_survivors(self, pids: Sequence[int]) -> None:
        if pids and not self._survivors_reported:
            self._survivors_reported = True
            listed = ", ".join(spawn.described(pid) for pid in pids)
            text = f"Processes of another user could not be ended and may still run: {listed}. Next: end them as that user."
            self._report(text)


def _size(path: str) -> int:
    try:
        return Path(path).stat().st_size
    except FileNotFoundError:
        return 0


_DRAIN_S = 5.0


class HiddenLogs:
    """Keeps secrets out of the logs of tasks: their output goes through pipes, which this process copies to the logs.

    Without any secrets, tasks write to their logs themselves.
    """

    def __init__(self, logs: Mapping[str, str], folder: str, values: Mapping[str, str]) -> None:
        self._logs, self._folder = logs, folder
        self._secrets = secret_values.encoded(secret_values.words(values, values))
        self._pipes: dict[str, LinePipe] = {}
        self._files: list[int] = []

    @classmethod
    def of(cls, plan: Plan, attempt: int, folder: str) -> HiddenLogs:
        """Return the pipes for the tasks of a plan."""
        values = task_environment.callers_values(plan, os.environ) if plan.job.secrets else {}
        logs = {task: plan.paths.log(attempt, task) for task in plan.tasks}
        return cls(logs, folder, {name: values[name] for name in plan.job.secrets})

    def target(self, task: str) -> str:
        """Return the path to which a task writes."""
        return os.path.join(self._folder, f"{task}.pipe") if self._secrets else self._logs[task]

    def open(self) -> None:
        if not self._secrets:
            return
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        for task, log in self._logs.items():
            file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
            self._files.append(file)
            self._pipes[task] = LinePipe(self.target(task), partial(self._write, file), self._secrets)
            self._pipes[task].start()

    def close(self) -> None:
        """Copy the rest. All processes of the tasks have ended."""
        for pipe in self._pipes.values():
            pipe.join(_DRAIN_S)
        for file in self._files if not any(pipe.is_open for pipe in self._pipes.values()) else ():
            os.close(file)

    def _write(self, file: int, data: bytes) -> None:
        left = memoryview(secret_values.hidden_bytes(data, self._secrets))
        while left:
            try:
                left = left[os.write(file, left) :]
            except OSError:
                # The disk is full: the task must not wait for it.
                return
