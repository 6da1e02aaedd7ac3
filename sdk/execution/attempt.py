"""One attempt in one container: starts its task, and follows what the containers of the attempt agree on."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from .. import logs
from ..clock import Clock
from ..errors import PodliftError
from ..job import cluster
from ..job.container import ContainerTerms
from ..job.layout import RunPaths
from ..job.payload import TASK_RESTARTS, Payload
from ..process import exit_reasons, machine, spawn
from ..process.exit_reasons import MemoryWatch, OutOfMemory
from ..process.hang import Activity, HangDetector, blame
from ..process.machine import Gpus, Sampler
from ..process.template import TaskStart, Template
from ..records.accounts import ACCOUNTED
from ..records.events import (
    TASK_RESTARTING,
    TRAINS,
    Event,
    unsettled,
    untrained,
)
from ..records.recorder import Recorder, accounts, last_step, read_events, read_progress
from ..records.sync import task_records
from ..runtime import task_main
from ..status import EXIT_INFRASTRUCTURE, EXIT_USER, Failure, Reason, State
from ..storage import file_systems, own_folders, posix
from ..storage.store import Store
from . import ending
from .attempts import Attempts, Membership
from .ending import POLL_S, STACKS_S, AttemptEnd
from .identity import TaskAddress
from .tail import CopiedOutput
from .task_process import TaskProcess
from .task_restarts import TaskRestart

_log = logs.logger("runtime")

_FOLLOW_S = 0.5
_SPARE_S = 1.0
# How often to look whether the GPUs of the other containers are idle too.
_IDLE_S = 15.0
# How long the rest of a task's output is copied, also in a container that is about to be killed.
DRAIN_S, LAST_DRAIN_S = 60.0, 5.0


@dataclass(frozen=True, kw_only=True)
class Container:
    """What all attempts of a container share."""

    task: str
    paths: RunPaths  # the run's folder in this container
    store: Store  # the run's directory in the bucket
    terms: ContainerTerms
    attempts: Attempts
    process: TaskProcess
    clock: Clock
    place: TaskAddress


def command(container: Container, attempt: int) -> list[str]:
    """Return the command line of the task's process."""
    return [sys.executable, str(Path(task_main.__file__)), container.paths.payload(attempt), container.task]


class ContainerAttempt:
    def __init__(
        self,
        container: Container,
        payload: Payload,
        membership: Membership,
        output: Callable[[], CopiedOutput],
        restarts: Sequence[TaskRestart] = (),
    ) -> None:
        self._container, self._payload = container, payload
        self._new_output, self._output = output, output()
        # Of the task alone, so far in other containers of it.
        self._restarts = len(restarts)
        self._attempt, self._members = membership.attempt, frozenset(membership.members.values())
        self._is_first = container.task == payload.tasks[0]
        source = task_records.agent_of(container.task, payload.tasks)
        self.recorder = Recorder(container.paths, source, membership.attempt, container.clock, continued=bool(restarts))
        self._ended = threading.Event()
        self._gone = threading.Event()
        self._end: AttemptEnd | None = None
        self._stalled_since: float | None = None
        self._memory, self._pid = MemoryWatch(), 0
        # An earlier container of this task may have said that its GPUs are idle.
        self._gpus, self._said_idle = Gpus(), bool(restarts)
        self._idle_due = container.clock.monotonic()
        limit_s = payload.limits.idle_accelerator_s if container.task in machine.watched(payload.tasks) else None
        self._idle = machine.IdleWatch(limit_s, self._gpus, self.recorder, container.clock)
        if restarts:
            message = f"The container of {container.task} was replaced."
            failure = {"task": container.task, "message": message, "traceback": "", "log": ""}
            found = {"reason": restarts[-1].reason.value, "failure": failure, "step": None}
            self.recorder.record(TASK_RESTARTING, task=container.task, why=restarts[-1].why, delay_s=0.0, **found)

    # --- While the task runs

    def run(
        self, env: Mapping[str, str], spare: Callable[[], Template | None], spare_wanted: Callable[[], None]
    ) -> AttemptEnd:
        """Run the task, and return how the attempt ended.

        The task is forked from the `spare` process, if there is one; `spare_wanted` is called once a second while it trains.
        """
        threading.Thread(target=self._follow, name="podlift-follow", daemon=True).start()
        while True:
            if self._restarts:
                env = {**env, TASK_RESTARTS: str(self._restarts)}
            code = self._run_process(env, spare(), spare_wanted)
            end = self._conclude(code)
            if end is not None:
                return end
            self._prepare_again(env)

    def _run_process(self, env: Mapping[str, str], spare: Template | None, spare_wanted: Callable[[], None]) -> int:
        container, process = self._container, self._container.process
        self._gone.clear()
        self._memory = MemoryWatch()
        why = process.start(self.start(env), spare)
        self._pid = process.pid or 0
        self._output.start()
        if why:
            _log.info(f"the task was not forked: {why}")
        if self._end is not None:
            # The attempt ended before there was a process to stop.
            container.process.send(signal.SIGKILL)
        detector = HangDetector(self._payload.limits.hang_s, self._activity, container.clock)
        in_step = container.task in cluster.in_step(self._payload.tasks)
        due = container.clock.monotonic()
        sampler = Sampler(container.paths, self._attempt, container.clock, self._gpus)
        while (code := process.poll()) is None:
            if in_step and not self._ended.is_set() and (stalled := detector.hang()) is not None:
                self._report(stalled.beats[0])
            if container.clock.monotonic() >= due:
                due += _SPARE_S
                sampler.update(lambda: self._running(env))
                self._watch_idle(env)
                # What could not be forked once will not be forked later.
                if self._beats() and not why:
                    spare_wanted()
            container.clock.sleep(POLL_S)
        self._gone.set()
        self._output.finish(LAST_DRAIN_S if process.stop_requested else DRAIN_S)
        return code

    def _running(self, env: Mapping[str, str]) -> list[tuple[str, int, str | None]]:
        pid = self._container.process.pid
        return [] if pid is None else [(self._container.task, pid, env.get("CUDA_VISIBLE_DEVICES"))]

    def _prepare_again(self, env: Mapping[str, str]) -> None:
        home = self._container.paths.root
        for folder in (self._container.paths.work(self._attempt, self._container.task), env["TMPDIR"]):
            own_folders.discard(home, os.path.relpath(folder, home))
        Path(env["TMPDIR"]).mkdir(parents=True, exist_ok=True)
        self._output = self._new_output()

    def start(self, env: Mapping[str, str]) -> TaskStart:
        """Return how the task is started."""
        container, attempt = self._container, self._attempt
        work = container.paths.work(attempt, container.task)
        return TaskStart(
            task=container.task,
            command=command(container, attempt),
            env=dict(env),
            cwd=os.path.dirname(work),
            log=self._output.paths[0],
            errors=self._output.paths[1],
        )

    def _beats(self) -> int:
        return read_progress(self._container.paths.progress(self._attempt, self._container.task))[1]

    def _activity(self) -> Activity:
        pid = self._container.process.pid
        used_s = 0.0 if pid is None else spawn.cpu_s(pid)
        return Activity(beats=(self._beats(),), output_bytes=self._output.count, cpu_s=used_s)

    def _report(self, beats: int) -> None:
        """Report that the task hangs. In the first task's container, end the attempt once all of them hang."""
        attempts, limit_s, now = (
            self._container.attempts,
            self._payload.limits.hang_s or 0.0,
            self._container.clock.monotonic(),
        )
        self._stalled_since = self._stalled_since or now
        try:
            attempts.report_stall(self._attempt, beats)
            if not self._is_first:
                return
            together = cluster.in_step(self._payload.tasks)
            found = {**attempts.stalled(self._attempt), self._container.task: beats}
            silent = [task for task in together if task not in found]
            if silent and now - self._stalled_since < limit_s:
                return
            hang = blame(limit_s, {task: found[task] for task in together if task in found}, silent=silent)
            failure = Failure(task=hang.task, message=hang.message)
            step = last_step(self._container.paths, self._attempt, self._container.task)
            attempts.conclude(self._attempt, Reason.HUNG, exit_code=EXIT_INFRASTRUCTURE, step=step, failure=failure)
        except PodliftError as error:
            _log.info(f"cannot report that this task hangs: {error}")

    def _watch_idle(self, env: Mapping[str, str]) -> None:
        """Report whether the GPUs of the task are idle. In the first task's container, end the attempt once all of them are."""
        found = self._idle.is_idle(lambda: [visible for _, _, visible in self._running(env)])
        attempts, now = self._container.attempts, self._container.clock.monotonic()
        if (
            self._ended.is_set()
            or not (found or self._said_idle)
            or (found is self._said_idle and now < self._idle_due)
        ):
            return
        # While only some of them are idle, each look at the others is a request that costs money.
        self._idle_due = now + _IDLE_S
        try:
            if found is not self._said_idle:
                attempts.report_idle(self._attempt, idle=found)
                self._said_idle = found
            if not (found and self._is_first) or set(machine.watched(self._payload.tasks)) - attempts.idle(
                self._attempt
            ):
                return
            step = last_step(self._container.paths, self._attempt, self._container.task)
            reason = Reason.ACCELERATOR_IDLE
            attempts.conclude(self._attempt, reason, exit_code=EXIT_USER, step=step, failure=self._idle.failure)
        except PodliftError as error:
            _log.info(f"cannot report that the GPUs are idle: {error}")

    # --- In a thread: the end of the attempt, which any container may write

    def _follow(self) -> None:
        while not self._ended.wait(_FOLLOW_S):
            try:
                end = self._container.attempts.end_of(self._attempt)
            except (PodliftError, ValueError, LookupError, TypeError) as error:
                _log.info(f"cannot check now whether the attempt has ended: {error}")
                continue
            if end is not None:
                self._end = end
                self._ended.set()
                self._stop_task(end)

    def _stop_task(self, end: AttemptEnd) -> None:
        if self._gone.is_set():
            return
        container, way = self._container, self._way(end)
        if end.task != container.task or end.reason is Reason.HUNG:
            _log.info(f"attempt {self._attempt} is over ({end.task}: {end.reason.value}): {container.task} is stopped")
        if end.reason is Reason.HUNG:
            container.process.send(signal.SIGUSR2)
            container.clock.sleep(STACKS_S)
        elif self._gone.wait(way.wait_s):
            return
        if not ending.may_save(end):
            # Another attempt may have begun.
            with suppress(OSError):
                posix.put_passing(container.paths.decided(self._attempt), b"{}")
        if way.grace_s:
            container.process.send(signal.SIGTERM)
            self._gone.wait(way.grace_s)
        if not self._gone.is_set():
            container.process.send(signal.SIGKILL)

    def _way(self, end: AttemptEnd) -> ending.Stop:
        """Return how the task is ended."""
        records = read_events(self._container.paths, ("failed", "done", "left"))
        records = [event for event in records if self._is_own(event)]
        return ending.stop(
            end,
            self._container.task,
            self._payload.tasks,
            done=any(event.kind == "done" for event in records),
            saving_s=ending.announced_s(records),
            steps=bool(self._beats()),
            host=ending.SHARED,
            limits=self._payload.limits,
        )

    def _is_own(self, event: Event) -> bool:
        return event.attempt == self._attempt

    # --- Once the task has ended

    def _conclude(self, code: int) -> AttemptEnd | None:
        """Record how the task ended, and return how the attempt did, or None if the task is restarted alone."""
        container = self._container
        code = self._code(code)
        spent = accounts(container.paths, self._attempt, [container.task])
        self.recorder.record(ACCOUNTED, tasks={task: asdict(account) for task, account in spent.items()})
        stopped = self._end is not None
        view = self._view(code)
        cause = ending.cause(view)
        seen = ending.explained(cause, view, self) if cause else None
        reason = seen.reason if seen else Reason.DONE
        step = last_step(container.paths, self._attempt, container.task)
        found = {"code": code, "reason": reason.value, "step": step}
        if code == 0 and not self._is_first:
            self._record_exit(found, collateral=stopped)
        elif code == 0 and (text := untrained(read_events(container.paths, TRAINS), self._output.last_error)):
            self._report_finding(text)
        end = self._await_end(view)
        alone = end is None and code != 0 and container.attempts.is_alone
        if alone:
            if container.process.stop_requested:
                return self._leaving()
            step = container.attempts.training_step()
            if self._restarted_alone(code, reason, step, seen.failure if seen else None):
                return self._end
        end = end or self._decide(code, reason, step, alone=alone)
        self._end = end
        self._ended.set()
        own = end.nonce == container.attempts.nonce and not stopped
        if code != 0 or self._is_first:
            self._record_exit({**found, "exit_code": end.exit_code}, collateral=not own and code != 0)
        if end.nonce == container.attempts.nonce or (self._is_first and end.nonce not in self._members):
            self._record_end(end, seen.failure if own and seen else None)
        return end

    def _code(self, code: int) -> int:
        """Return the exit code of the task, 0 if it crashed once everything of it was done."""
        container, payload = self._container, self._payload
        done = {event.source for event in read_events(container.paths, ("done",)) if self._is_own(event)}
        others = cluster.end_by_themselves(payload.tasks) if code and done and self._is_first else ()
        if len(others) > 1:
            done |= task_records.finished_tasks(payload)
        crashed = exit_reasons.crashed_at_exit(container.task, code, done, others)
        if crashed:
            self._report_finding(crashed)
        return 0 if crashed else code

    def _report_finding(self, text: str) -> None:
        _log.info(text)
        self.recorder.record("finding", text=text)

    def _leaving(self) -> AttemptEnd:
        task = self._container.task
        why = f"The others go on without {task}, until a new container of it joins them."
        return AttemptEnd(state=State.FAILED, reason=Reason.PREEMPTED, task=task, nonce="", restart=True, why=why)

    def _restarted_alone(self, code: int, reason: Reason, step: int | None, failure: Failure | None) -> bool:
        """Return whether the task is restarted alone; once it may start, or the attempt has ended."""
        container, task = self._container, self._container.task
        decision = container.attempts.restart_alone(self._attempt, reason, step)
        if not decision.restart:
            return False
        found = {"code": code, "reason": reason.value, "step": step, "failure": failure and asdict(failure)}
        self.recorder.record(TASK_RESTARTING, task=task, why=decision.why, delay_s=decision.delay_s, **found)
        _log.info(f"{task} has ended ({reason.value}). {decision.why}")
        self._restarts += 1
        until = container.clock.monotonic() + decision.delay_s
        while container.clock.monotonic() < until and not (self._ended.is_set() or container.process.stop_requested):
            container.clock.sleep(POLL_S)
        return True

    def _record_exit(self, found: Mapping[str, object], *, collateral: bool) -> None:
        stop_requested = self._container.process.stop_requested
        task = self._container.task
        self.recorder.record("exited", task=task, collateral=collateral, stop_requested=stop_requested, **found)

    def _record_end(self, end: AttemptEnd, seen: Failure | None) -> None:
        failure = end.failure or seen
        details = failure and asdict(failure)
        if end.restart:
            data = {"reason": end.reason.value, "failure": details, "why": end.why, "delay_s": end.delay_s}
            self.recorder.record("restarting", **data)
        elif end.state is not State.SUCCEEDED:
            about = {"why": end.why, "alone": end.alone, "step": end.step}
            self.recorder.record("attempt_ended", reason=end.reason.value, failure=end.failure and details, **about)

    def _view(self, code: int) -> ending.View:
        task, tasks = self._container.task, self._payload.tasks
        failed = unsettled(read_events(self._container.paths, ("failed", TASK_RESTARTING)))
        failed = [event for event in failed if event.kind == "failed" and self._is_own(event)]
        stop_requested = self._container.process.stop_requested
        return ending.View(tasks=tasks, own=[task], codes={task: code}, failed=failed, stop_requested=stop_requested)

    def _await_end(self, view: ending.View) -> AttemptEnd | None:
        """Wait for the end of the attempt where another container decides about it, or is expected to do so."""
        if self._end is not None:
            return self._end
        process, clock = self._container.process, self._container.clock
        wait_s = 0.0 if self._is_first else float("inf")
        if view.codes[self._container.task]:
            wait_s = ending.echo_s(view, ending.SHARED, self._payload.limits)
            if wait_s and self._first_is_done():
                wait_s = ending.echo_s(replace(view, done=view.tasks[:1]), ending.SHARED, self._payload.limits)
        until = clock.monotonic() + wait_s
        while not self._ended.is_set() and clock.monotonic() < until and not process.stop_requested:
            self._ended.wait(POLL_S)
        return self._end

    def _first_is_done(self) -> bool:
        found = task_records.read(self._container.store, ("done",), [self._attempt])
        return any(event.source == self._payload.tasks[0] for event in found)

    # --- What a failure means: `ending.Evidence`

    def memory(self, task: str) -> OutOfMemory:
        return self._memory.ended(self._pid)

    def cpu_limit(self, task: str) -> float | None:
        return None

    def full_disk(self) -> str:
        return file_systems.out_of_space(self._container.paths.root)

    def lost_peers(self, message: str) -> str:
        return exit_reasons.lost_peers_message(message, stopped=(), paused_s=0.0)

    def last_lines(self, task: str) -> str:
        # The service has them, and so has the log in the bucket.
        return ""

    def log(self, task: str) -> str:
        return ""

    def _decide(self, code: int, reason: Reason, step: int | None, *, alone: bool = False) -> AttemptEnd:
        container = self._container
        if code == 0 and not self._is_first:
            # This container is stopped, and its task is done: whether the run has succeeded is not known here.
            return AttemptEnd(state=State.SUCCEEDED, reason=Reason.DONE, task=container.task, nonce="")
        cancelled = code != 0 and container.attempts.is_cancelled()
        own = container_code(code, container.terms, restart=False)
        return container.attempts.conclude(
            self._attempt, reason, exit_code=own, step=step, cancelled=cancelled, alone=alone
        )


_SHELL_SIGNAL = 128


def container_code(code: int, terms: ContainerTerms, *, restart: bool) -> int:
    """Return the container's exit code for that of its task, which is negative if a signal ended it.

    `restart`: another attempt follows, but not in this container.
    """
    # As a shell would report it.
    plain = code if code >= 0 else _SHELL_SIGNAL - code
    if plain and restart:
        return terms.restart_code
    # The service would start what no retry budget covers, as often as its own rules allow.
    return EXIT_INFRASTRUCTURE if plain in terms.restarting_codes else plain
