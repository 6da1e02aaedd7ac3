"""One attempt of the tasks of one host: starts them, watches them, finds out why they ended, and leaves no process running.

An agent owns all tasks of a run on a laptop, and one in a container. Twenty times a second it looks at them, and at the
agreement with the other agents of the run (`Agreement`). An attempt ends its running tasks in one way, whatever the cause.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Generic

from ..errors import PodliftError
from ..job import cluster
from ..job.payload import TASK_RESTARTS, Payload
from ..logs import logger
from ..process import exit_reasons, janitor, machine, spawn
from ..process.exit_reasons import MemoryWatch
from ..process.hang import Activity, Hang, HangDetector, Pauses
from ..process.machine import Gpus, IdleWatch, Sampler
from ..process.template import TaskStart
from ..records.accounts import ACCOUNTED
from ..records.events import TASK_RESTARTING, TRAINS, Event, untrained
from ..records.exits import OutOfMemory
from ..records.recorder import accounts, last_step, read_events, read_progress
from ..records.verdicts import SUCCEEDED, AttemptEnd, failed
from ..status import Failure, Reason, State
from ..storage import file_systems, posix, reserve
from . import ending
from .agreement import Agreement, Membership
from .ending import DECIDED_GRACE_S, POLL_S, STACKS_S
from .host import B, Host
from .task import TaskProcess

_log = logger("runtime")

# SIGKILL takes effect at once, except on another user's process.
_KILL_S = 10.0
# How often to check whether a standby process for the next attempt is needed.
_STANDBY_S = 1.0


class Attempt(Generic[B]):
    """The tasks of a host in an attempt that has begun."""

    def __init__(self, host: Host[B], payload: Payload, agreement: Agreement, membership: Membership, setup: B) -> None:
        self._host, self._payload, self._agreement = host, payload, agreement
        self._membership, self._number, self._setup = membership, membership.attempt, setup
        self._output, self._recorder = setup.output, setup.recorder
        self._paths, self._clock = host.paths, host.clock
        self._first = payload.tasks[0]
        self._tasks: dict[str, TaskProcess] = {}
        self._starts: dict[str, TaskStart] = {}
        self._codes: dict[str, int] = {}
        self._unrecorded: list[str] = []
        # Known once the attempt is over; the task of this host that has caused its end as it seems, and as is agreed on.
        self._end: AttemptEnd | None = None
        self._suspect = self._cause = ""
        # When tasks are due that are restarted alone, and how often that has happened.
        self._due: dict[str, float] = {}
        self._restarts: Counter[str] = Counter(dict.fromkeys(host.tasks, setup.restarts))
        # Failures of tasks that were restarted alone since, also by another container: source and number of their records.
        self._settled: set[tuple[str, int]] = set()
        if setup.restarts:
            self._settle(host.tasks)
        self._echo_until: float | None = None
        self._survivors_reported = False
        self._pauses = Pauses(self._clock)
        # Made before the tasks start, because it reports changes since then.
        self._memory = MemoryWatch()
        gpus = Gpus()
        self._sampler = Sampler(self._paths, self._number, self._clock, gpus)
        watched = set(machine.watched(host.tasks))
        self._idle = IdleWatch(
            payload.limits.idle_accelerator_s if watched else None, gpus, self._recorder, self._clock
        )
        self._in_step = [task for task in cluster.in_step(payload.tasks) if task in host.tasks]
        self._standby_due = self._clock.monotonic()
        # Tasks that have left, where this could not be written for the others yet.
        self._unreported: list[str] = []

    def run(self) -> AttemptEnd:
        """Start the tasks. Return how the attempt ended, once they are gone.

        Raises:
            LeaveError: this host has nothing more to do in the run.
        """
        unfollow = self._agreement.follow(self._number, self._steps)
        try:
            self._tasks = dict(self._host.start(self._membership, self._setup))
            self._starts = {name: task.start for name, task in self._tasks.items()}
            end, asked_s = self._watch()
            self._end_tasks(end, asked_s)
            return end
        finally:
            unfollow()
            self._stop(0.0)
            self._record_accounts()
            self._output.close()

    # --- While the tasks run

    def _watch(self) -> tuple[AttemptEnd, float | None]:
        """Wait for the end of the attempt. Return it and, if it was requested, how many seconds the tasks have to stop."""
        self._pauses.begin()
        detector = HangDetector(self._payload.limits.hang_s if self._in_step else None, self._activity, self._clock)
        while True:
            self._reap()
            own_end = self._own_end()
            if own_end is None and self._due and self._host.stop_requested:
                return self._leaving(next(iter(self._due))), None
            if own_end is None:
                self._start_due()
            elif own_end.state is not State.FAILED and self._agreement.stop_agreed(self._number):
                # The tasks exited on request, before this loop saw the request.
                return self._agreement.requested() or (own_end, 0.0)
            elif (end := self._concluded(own_end)) is not None:
                return end, None
            if (end := self._agreement.known_end(self._number)) is not None:
                return end, None
            if (requested := self._agreement.requested()) is not None:
                return requested
            if self._codes.keys() != set(self._host.tasks) and (end := self._stalled(detector)) is not None:
                return end, None
            self._clock.sleep(POLL_S)

    def _own_end(self) -> AttemptEnd | None:
        """Return the end that follows from the records and exit codes of this host's tasks, or None."""
        if self._host.stop_requested and self._codes.keys() == set(self._host.tasks) and not any(self._codes.values()):
            # Whether the run has succeeded is not known here.
            return SUCCEEDED
        if not (self._codes or self._host.scope.ends_with_record):
            return None
        view = self._view(self._codes)
        cause = ending.cause(view)
        if cause is None:
            return None
        self._suspect = cause.task
        if cause.is_asked:
            return ending.explained(cause, view, self)
        if self._awaits_cause(view):
            return None
        if self._first in self._tasks and self._first not in self._codes and self._tasks[self._first].is_exiting:
            # Others may fail because it exited. Its exit code will be known in a moment.
            return None
        exits = len(self._codes)
        self._reap()
        # A peer that died after the last look at the exits may be the reason.
        return ending.explained(cause, view, self) if len(self._codes) == exits else None

    def _view(self, codes: Mapping[str, int]) -> ending.View:
        return ending.View(
            tasks=self._payload.tasks,
            own=self._host.tasks,
            codes=codes,
            failed=self._failure_records(),
            stop_requested=self._host.stop_requested,
        )

    def _awaits_cause(self, view: ending.View) -> bool:
        """Return whether the failure of another task may be reported in a moment."""
        scope, limits, now = self._host.scope, self._payload.limits, self._clock.monotonic()
        view = replace(view, done=self._done())
        wait_s = 0.0 if self._host.stop_requested else ending.echo_s(view, scope, limits)
        if not wait_s:
            return False
        if self._echo_until is None:
            if self._first not in self._host.tasks:
                view = replace(view, done=self._agreement.finished(self._number))
                wait_s = ending.echo_s(view, scope, limits)
            if view.first_is_done:
                # It waits for the others, and checks whether they have ended.
                self._record_exits(self._unrecorded)
            self._echo_until = now + wait_s
        return now < self._echo_until

    def _concluded(self, own_end: AttemptEnd) -> AttemptEnd | None:
        """Agree on the end of the attempt, and return it; None if the task that caused it is restarted alone."""
        task = ending.restarts_alone(own_end, self._payload.tasks, self._codes)
        if task and self._host.stop_requested:
            return self._leaving(task)
        if task and not self._may_restart():
            task = ""
        elif task and self._restarted_alone(own_end, task):
            return None
        return self._conclude(own_end, task)

    def _leaving(self, task: str) -> AttemptEnd:
        """Return how this host leaves the attempt: a new container continues its task while the others keep running."""
        self._unrecorded = []
        why = f"The others continue without {task}, until a new container of it joins them."
        return AttemptEnd(state=State.FAILED, reason=Reason.PREEMPTED, task=task, restart=True, why=why)

    def _may_restart(self) -> bool:
        number, agreement = self._number, self._agreement
        has_end = agreement.known_end(number) is not None or agreement.requested() is not None
        return not has_end and not agreement.stop_agreed(number)

    def _conclude(self, own_end: AttemptEnd, not_restarted: str = "") -> AttemptEnd:
        tasks = self._host.tasks
        if own_end.state is State.SUCCEEDED and self._first not in tasks:
            return own_end
        if own_end.state is State.SUCCEEDED:
            self._report_untrained()
        suspect = "" if own_end.reason in ending.OF_ALL_TASKS else self._suspect
        step = last_step(self._paths, self._number, self._first if self._first in tasks else tasks[0])
        exit_code = self._host.exit_code(own_end, self._codes.get(suspect, 0))
        other_end = self._agreement.known_end(self._number)
        end = other_end or self._agreement.conclude(
            self._number, own_end, step=step, exit_code=exit_code, not_restarted=not_restarted
        )
        if other_end is not None or not self._agreement.is_own(end):
            return end
        self._cause = suspect
        return replace(end, failure=end.failure or own_end.failure)

    def _stalled(self, detector: HangDetector) -> AttemptEnd | None:
        """Return the end of the attempt if its tasks hang, if its GPUs are idle, or at the time limit."""
        try:
            if self._agreement.is_overdue():
                return self._conclude(ending.over_limit(self._payload.limits.timeout_s))
            if self._agreement.is_idle(self._number, idle=self._idle.is_idle(self._visible)):
                return self._conclude(failed(Reason.ACCELERATOR_IDLE, self._idle.failure))
            if (activity := detector.hang()) is None:
                return None
            hang = self._agreement.hang(self._number, dict(zip(self._in_step, activity.beats, strict=True)))
            return None if hang is None else self._conclude(failed(Reason.HUNG, self._hung(hang)))
        except PodliftError as error:
            # It is tried again.
            _log.info(f"cannot report now that this host's tasks hang or are idle: {error}")
            return None

    def _hung(self, hang: Hang) -> Failure:
        """Let the tasks write their stacks, and return the failure for the user."""
        self._write_stacks()
        failure = Failure(task=hang.task, message=hang.message)
        if hang.task not in self._tasks:
            return failure
        return replace(failure, traceback=self._output.last_lines(hang.task), log=self._output.log(hang.task))

    def _steps(self) -> list[int]:
        """Return the steps of the tasks that step together."""
        return [self._beats(task) for task in self._in_step]

    def _activity(self) -> Activity:
        return Activity(
            beats=tuple(self._beats(task) for task in self._in_step),
            output_bytes=sum(self._output.count(task) for task in self._in_step),
            cpu_s=sum(spawn.cpu_s(task.pid) for task in self._tasks.values()),
        )

    def _beats(self, task: str) -> int:
        return read_progress(self._paths.progress(self._number, task))[1]

    def _running(self) -> list[TaskProcess]:
        return [task for task in self._tasks.values() if task.name not in self._codes]

    def _sampled(self) -> list[tuple[str, int, str | None]]:
        return [(task.name, task.pid, task.start.env.get("CUDA_VISIBLE_DEVICES")) for task in self._running()]

    def _visible(self) -> list[str | None]:
        training = machine.watched(self._payload.tasks)
        return [visible for name, _, visible in self._sampled() if name in training]

    def _failure_records(self) -> list[Event]:
        names = posix.list_names(self._paths.events)
        if not any(self._codes.values()) and not any(name.endswith(".failed.json") for name in names):
            return []
        events = [event for event in read_events(self._paths, ("failed",)) if event.attempt == self._number]
        # Not by their times: a program may replace the clock.
        return [event for event in events if (event.source, event.sequence) not in self._settled]

    def _done(self) -> set[str]:
        stored = [*posix.list_names(self._paths.events), *(name for name, _ in reserve.read(self._paths.reserves))]
        names = [name.split(".") for name in stored if name.endswith(".done.json")]
        return {source for attempt, source, *_ in names if int(attempt) == self._number}

    # --- Exits

    def _reap(self) -> None:
        self._output.update()
        self._sampler.update(self._sampled)
        self._pauses.update()
        if self._clock.monotonic() >= self._standby_due:
            self._standby_due += _STANDBY_S
            # Processes that outlived a task, and then ended: without this they would be zombies for the whole training.
            spawn.reap_orphans([task.pid for task in self._tasks.values()])
            if any(self._beats(task) for task in (self._in_step or self._host.tasks)[:1]):
                self._host.keep_standby()
            for name in [*self._unreported]:
                self._let_go_on(name)
        for task in self._running():
            if (code := task.poll()) is not None:
                if len(self._host.tasks) == 1:
                    # It may hold the pipes of the task's output.
                    spawn.end_orphans()
                self._output.ended(task.name)
                self._codes[task.name] = self._code(task.name, code)
                self._unrecorded.append(task.name)
                self._let_go_on(task.name)
        # The exit of a task that may be restarted alone is recorded with its restart, the exit of the first task with the end.
        self._record_exits(
            [name for name in self._unrecorded if self._end or not (self._codes[name] or name == self._first)]
        )

    def _let_go_on(self, name: str) -> None:
        """Let no other task wait for a task that has left with 0 before its program was done, as by `os._exit(0)`."""
        if self._codes[name] or name == self._first or name not in self._in_step or name in self._done():
            return
        try:
            self._agreement.let_go_on(self._number, name, self._beats(name))
            self._unreported = [other for other in self._unreported if other != name]
        except (PodliftError, OSError) as error:
            if name not in self._unreported:
                self._unreported.append(name)
                _log.info(f"cannot report to the other tasks now that {name} has exited: {error}")

    def _code(self, name: str, code: int) -> int:
        """Return the exit code of a task, 0 if it crashed once everything of it was done."""
        others = cluster.end_by_themselves(self._payload.tasks) if name == self._first else ()
        done = self._done() if code < 0 else set[str]()
        if name in done and not set(others) <= done:
            done |= self._agreement.finished(self._number)
        crashed = exit_reasons.crashed_at_exit(name, code, done, others)
        if crashed:
            self._report(crashed)
        return 0 if crashed else code

    def _record_exits(self, names: Sequence[str]) -> None:
        for name in names:
            code, end = self._codes[name], self._end
            view = self._view({name: code})
            view = replace(view, failed=[event for event in view.failed if event.source == name])
            cause = ending.cause(view)
            task_end = ending.explained(cause, view, self) if cause else SUCCEEDED
            about = {"code": code, "reason": task_end.reason.value, "step": last_step(self._paths, self._number, name)}
            if end is not None and (code or name == self._first):
                about["exit_code"] = end.exit_code
            collateral = bool(code) and end is not None and name != self._cause
            if task_end.failure and not (collateral or view.failed):
                # It has recorded nothing.
                about["output"] = task_end.failure.traceback
            stopped = self._host.stop_requested
            self._recorder.record("exited", task=name, collateral=collateral, stop_requested=stopped, **about)
        self._unrecorded = [name for name in self._unrecorded if name not in names]

    def _report(self, finding: str) -> None:
        _log.info(finding)
        self._recorder.record("finding", text=finding)

    def _report_untrained(self) -> None:
        if finding := untrained(read_events(self._paths, TRAINS), self._output.last_error(self._first)):
            self._report(finding)

    def _record_accounts(self) -> None:
        counted = accounts(self._paths, self._number, self._host.tasks)
        # The end of the attempt does not depend on it.
        with suppress(OSError):
            self._recorder.record(ACCOUNTED, tasks={task: asdict(account) for task, account in counted.items()})

    # --- Tasks that are restarted alone

    def _restarted_alone(self, own_end: AttemptEnd, name: str) -> bool:
        """Return whether a task that has ended is restarted while the others continue."""
        step = self._agreement.training_step()
        decision = self._agreement.restart_alone(self._number, name, own_end.reason, step)
        if not decision.restart:
            return False
        code = self._forget(name)
        self._settle([name])
        failure = asdict(own_end.failure) if own_end.failure else None
        about = {"code": code, "reason": own_end.reason.value, "step": step, "failure": failure}
        self._recorder.record(TASK_RESTARTING, task=name, why=decision.why, delay_s=decision.delay_s, **about)
        _log.info(f"{name} has ended ({own_end.reason.value}). {decision.why}")
        self._due[name] = self._clock.monotonic() + decision.delay_s
        return True

    def _settle(self, names: Sequence[str]) -> None:
        records = [event for event in read_events(self._paths, ("failed",)) if event.attempt == self._number]
        self._settled |= {(event.source, event.sequence) for event in records if event.source in names}

    def _forget(self, name: str) -> int:
        """End the rest of a task's process, remove its files, and return its exit code."""
        task = self._tasks.pop(name)
        until = self._clock.monotonic() + DECIDED_GRACE_S
        # It has recorded its failure, and may be about to exit.
        while not task.has_exited and self._clock.monotonic() < until:
            self._clock.sleep(POLL_S)
        code = task.end(self._clock.sleep)
        # Those of the others stay.
        output, is_only = task.start.log, len(self._host.tasks) == 1
        spawn.end_orphans(lambda pid: is_only or janitor.is_of_task(pid, name, output))
        self._codes.pop(name, None)
        self._unrecorded = [other for other in self._unrecorded if other != name]
        self._echo_until = None
        self._host.clear(self._number, name)
        return code

    def _start_due(self) -> None:
        """Start the tasks that are restarted alone, at their old addresses, so that the others find them again."""
        for name in [name for name, due in self._due.items() if self._clock.monotonic() >= due]:
            del self._due[name]
            self._restarts[name] += 1
            start = self._starts[name]
            start = replace(start, env={**start.env, TASK_RESTARTS: str(self._restarts[name])})
            self._tasks[name] = self._host.start_again(start)
            # All ends until now are explained. The cause that killed this task does not explain a later end.
            self._memory = MemoryWatch()
            self._recorder.record("task_started", task=name, pid=self._tasks[name].pid)

    # --- The end of the tasks that still run

    def _end_tasks(self, end: AttemptEnd, asked_s: float | None) -> None:
        self._end, saves = end, end.state is State.CHECKPOINTED
        if running := [task.name for task in self._running() if end.task and end.task != task.name]:
            _log.info(
                f"attempt {self._number} is over ({end.task}: {end.reason.value}): {', '.join(running)} is stopped"
            )
        if end.reason is Reason.HUNG and not self._agreement.is_own(end):
            self._write_stacks()
        grace_s = self._let_end(end) if asked_s is None and not saves else asked_s or 0.0
        self._record_exits(self._unrecorded)
        if self._host.scope.records_stop:
            self._recorder.record("stopping", state=end.state.value, reason=end.reason.value)
        if asked_s is None and saves:
            grace_s = self._let_end(end)
        if end.state is State.CANCELLED:
            self._await_step_boundary(grace_s)
        if not ending.may_save(end):
            # It exists already, or the disk is full and tasks may save for nothing.
            with suppress(OSError):
                posix.put_passing(self._paths.decided(self._number), b"{}")
        self._stop(grace_s)

    def _let_end(self, end: AttemptEnd) -> float:
        """Let the other tasks end by themselves for as long as they may. Return how many seconds they have to stop then."""
        start, until = self._clock.monotonic(), float("inf")
        while True:
            ways = self._ways(end)
            now = self._clock.monotonic()
            if (request := self._agreement.requested()) is not None:
                # A save of all tasks gets the same time as a stop.
                until = min(until, now + request[1] if end.state is State.CHECKPOINTED else now)
            if now >= min(until, start + max((way.wait_s for way in ways), default=0.0)):
                break
            self._clock.sleep(POLL_S)
            self._reap()
        return max((way.grace_s for way in ways), default=0.0)

    def _ways(self, end: AttemptEnd) -> list[ending.Stop]:
        """Return how each of the running tasks is ended."""
        succeeded = end.state is State.SUCCEEDED
        done = self._done() if succeeded else set[str]()
        records = [] if succeeded else read_events(self._paths, ("failed", "left"))
        return [
            ending.stop(
                end,
                task.name,
                self._payload.tasks,
                done=task.name in done,
                saving_s=ending.announced_s([e for e in records if (e.attempt, e.source) == (self._number, task.name)]),
                steps=not succeeded and bool(self._beats(task.name)),
                scope=self._host.scope,
                limits=self._payload.limits,
            )
            for task in self._running()
        ]

    def _await_step_boundary(self, grace_s: float) -> None:
        """Wait for tasks that check for a stop request between steps. Tasks without a reported step do not check."""
        since = self._clock.monotonic()
        stepped = any(self._beats(task) for task in self._in_step)
        while stepped and not self._codes.keys() >= set(self._in_step):
            cancel_grace_s = self._agreement.grace_s()
            if self._clock.monotonic() >= since + (grace_s if cancel_grace_s is None else min(grace_s, cancel_grace_s)):
                return
            self._clock.sleep(POLL_S)
            self._reap()

    def _write_stacks(self) -> None:
        """Make every running task write its Python stacks to its log."""
        for task in self._running():
            task.send(signal.SIGUSR2)
        self._clock.sleep(STACKS_S)

    def _stop(self, grace_s: float) -> None:
        """End all processes of all tasks: SIGTERM, `grace_s` seconds, SIGKILL."""
        if grace_s:
            for task in self._running():
                task.send(signal.SIGTERM)
        since = self._clock.monotonic()
        while self._running() and self._clock.monotonic() < since + grace_s:
            self._clock.sleep(POLL_S)
            self._reap()
            cancel_grace_s = self._agreement.grace_s()
            grace_s = grace_s if cancel_grace_s is None else min(grace_s, cancel_grace_s)
        for task in self._running():
            task.kill()
        until = self._clock.monotonic() + _KILL_S
        while self._running() and self._clock.monotonic() < until:
            self._reap()
            self._clock.sleep(POLL_S / 10)
        self._report_survivors(spawn.end_orphans())

    def _report_survivors(self, pids: Sequence[int]) -> None:
        if pids and not self._survivors_reported:
            self._survivors_reported = True
            listed = ", ".join(spawn.described(pid) for pid in pids)
            text = f"Processes of another user could not be ended and may still run: {listed}. Next: end them as that user."
            self._report(text)

    # --- The evidence for a failure: `ending.Evidence`

    def memory(self, task: str) -> OutOfMemory:
        return self._memory.ended()

    def cpu_limit(self, task: str) -> float | None:
        return self._tasks[task].cpu_limit_s

    def lost_peers(self, message: str) -> str:
        stopped = [task.name for task in self._tasks.values() if spawn.is_stopped(task.pid)]
        # One of several agents waits for the run's store now and then, which is no pause of the tasks.
        paused_s = self._pauses.longest_s if set(self._payload.tasks) <= set(self._host.tasks) else 0.0
        return exit_reasons.lost_peers_message(message, stopped=stopped, paused_s=paused_s)

    def last_lines(self, task: str) -> str:
        return self._output.last_lines(task)

    def log(self, task: str) -> str:
        return self._output.log(task)

    def full_disk(self) -> str:
        return next(filter(None, map(file_systems.out_of_space, self._host.folders)), "")
