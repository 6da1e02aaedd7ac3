"""One attempt of a run: starts every task, watches them, finds out why it ended, leaves nobody behind."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from ...clock import Clock
from ...process import exit_reasons, spawn
from ...process.exit_reasons import MemoryWatch, OutOfMemory
from ...process.log_index import Stamper
from ...process.log_tail import last_lines
from ...process.ports import Reservation
from ...records.events import (
    Event,
    error_of,
    first_failure,
    is_collateral,
    is_disk_full,
    is_lost_peer,
    reason_of,
)
from ...records.recorder import Recorder, read_events, read_progress, sweep
from ...spec import cluster
from ...spec.plan import Plan
from ...status import EXIT_CHECKPOINTED, Failure, Reason, State
from ...storage import os_errors, posix, reserve
from ...storage.reserve import Reserve
from . import outputs, render
from .ending import Ending, Verdict, failed
from .hang import Hang, Life, Pauses
from .interpreter import Interpreter
from .template import Launch, Start

_POLL_S = 0.05
# How long a task whose error is an echo ("peer unavailable") may wait for the record of the peer that caused it.
_ECHO_S = 3.0
# Tasks that are stopped because another one has decided the run have nothing left to say.
_DECIDED_GRACE_S = 2.0
# SIGKILL takes effect at once, but on a process of another user.
_KILL_S = 10.0
_TAIL_LINES = 20
# A task that trains may save its state when SIGTERM comes, but not when all is decided, or it has had its time already.
_MAY_SAVE = {Reason.TIMEOUT, Reason.INFRASTRUCTURE}
# Writing the stacks takes milliseconds, by a handler that needs no lock of Python's.
_STACKS_S = 0.5


class Gang:
    """The tasks of one attempt.

    Args:
        plan: the run.
        attempt: counts from 1.
        named: whether the cluster's host names resolve here; else all tasks are "localhost".
        temporary: the folder that will hold the tasks' temporary folders.
        interpreter: what starts a task.
        ending: what may end the run from outside.
        clock: what time it is.
    """

    def __init__(
        self,
        plan: Plan,
        attempt: int,
        *,
        named: bool,
        temporary: str,
        interpreter: Interpreter,
        ending: Ending,
        clock: Clock,
    ) -> None:
        self._plan = plan
        self._temporary = temporary
        self._interpreter = interpreter
        self._ending = ending
        self._attempt = attempt
        self._clock = clock
        self._reserve = Reserve(plan.paths.reserve(attempt, "supervisor"))
        self._recorder = Recorder(plan.paths, "supervisor", attempt, clock, self._reserve)
        self._reservation = Reservation(plan.tasks)
        self._tasks: dict[str, spawn.Process] = {}
        self._codes: dict[str, int] = {}
        self._spent: dict[str, float | None] = {}
        self._echo_until: float | None = None
        self._pauses = Pauses(clock)
        self._left = False
        # Made before the tasks start: what it tells is what has happened since.
        self._memory = MemoryWatch()
        self._stamps = Stamper(plan.paths, attempt, plan.tasks, clock)
        self._host: Callable[[cluster.Task], str] = (
            (lambda task: cluster.host_name(task, plan.run_id)) if named else (lambda task: "localhost")
        )

    def run(self) -> Verdict:
        """Start the tasks and return the verdict when all of them are gone and what they have left is collected."""
        try:
            self._start()
            verdict, grace_s = self._watch()
            self._recorder.record("stopping", state=verdict.state.value, reason=verdict.reason.value)
            if verdict.state in (State.CANCELLED, State.CHECKPOINTED):
                self._let_end(grace_s)
            if verdict.reason not in _MAY_SAVE:
                # It is there, or the disk is full: then a task may save in vain.
                with suppress(OSError):
                    posix.put_passing(self._plan.paths.decided(self._attempt), b"{}")
            self._stop(grace_s)
            return verdict
        finally:
            self._stop(0.0)
            self._stamps.close()
            sweep(self._plan.paths, self._plan.tasks)
            reserve.sweep(self._plan.paths.reserves, frozenset(self._plan.tasks), self._attempt)
            self._reservation.close()
            outputs.collect(self._plan, self._attempt, self._recorder)
            self._reserve.close()

    def _start(self) -> None:
        plan, paths = self._plan, self._plan.paths
        addresses = {task.name: f"{self._host(task)}:{self._reservation.ports[task.name]}" for task in plan.members}
        starts = [self._task(task, addresses) for task in plan.members]
        # Importing begins with this line: everything else is done meanwhile.
        launch = Launch(plan, starts, self._interpreter, f"{self._temporary}/{self._attempt}-imports.log")
        posix.put_passing(paths.payload(self._attempt), plan.payload(self._attempt).to_json().encode())
        for folder in (paths.model, paths.checkpoints, paths.tensorboard):
            Path(folder).mkdir(parents=True, exist_ok=True)
        for task in plan.tasks:
            log, work = Path(paths.log(self._attempt, task)), Path(paths.work(self._attempt, task))
            for place in (work.parent, Path(render.scratch(self._temporary, self._attempt, task)), log.parent):
                place.mkdir(parents=True, exist_ok=True)
        self._tasks = launch.finish(lambda: self._ending.asked() is not None)
        pids = {name: process.pid for name, process in self._tasks.items()}
        self._recorder.record("attempt_started", addresses=addresses, pids=pids, why_fresh=launch.why_fresh)

    def _task(self, task: cluster.Task, addresses: Mapping[str, str]) -> Start:
        plan, paths = self._plan, self._plan.paths
        inherited = {**render.inherited(os.environ, plan.job["env"]), **self._interpreter.variables}
        if self._interpreter.isolated:
            inherited.pop("PYTHONPATH", None)
        own = render.environment(plan, self._attempt, task, addresses, self._temporary)
        return Start(
            task=task.name,
            command=render.command(plan, self._attempt, task.name, self._interpreter),
            env={**inherited, **own, "PODLIFT_PARENT": str(os.getpid())},
            cwd=str(Path(paths.work(self._attempt, task.name)).parent),
            log=paths.log(self._attempt, task.name),
        )

    def _watch(self) -> tuple[Verdict, float]:
        """Wait for whatever ends the attempt; return it and how long the tasks may take to stop, in seconds."""
        self._pauses.begin()
        life = Life(
            self._plan, self._attempt, {name: process.pid for name, process in self._tasks.items()}, self._clock
        )
        while True:
            self._reap()
            verdict = self._tasks_verdict()
            if verdict is not None and verdict.state is not State.FAILED and self._asked_to_leave():
                # The tasks have ended because that was asked of them, and were quicker than this look.
                return self._ending.asked() or (verdict, 0.0)
            if verdict is not None and verdict.state is State.CHECKPOINTED:
                # Its peers are about to leave too, as soon as what they share is saved.
                return verdict, self._plan.job["limits"]["grace_s"]
            if verdict is not None:
                if verdict.state is State.SUCCEEDED:
                    self._let_leave()
                else:
                    self._let_save()
                return verdict, min(_DECIDED_GRACE_S, self._plan.job["limits"]["grace_s"])
            asked = self._ending.asked()
            if asked is not None:
                return asked
            hang = life.hang()
            if hang is not None:
                return self._hung(hang), 0.0
            self._clock.sleep(_POLL_S)

    def _let_save(self) -> None:
        """Wait for tasks that save what an exception has left of their training, as long as they have said at most."""
        begun = self._clock.monotonic()
        while self._saves_for() > self._clock.monotonic() - begun and self._ending.asked() is None:
            self._clock.sleep(_POLL_S)
            self._reap()

    def _saves_for(self) -> float:
        """Return how many seconds the tasks take that have failed, and are still there."""
        records = read_events(self._plan.paths, ("failed", "left"))
        records = [event for event in records if event.attempt == self._attempt]
        gone = self._codes.keys() | {event.source for event in records if event.kind == "left"}
        return max((float(e.data.get("saving_s", 0.0)) for e in records if e.source not in gone), default=0.0)

    def _let_leave(self) -> None:
        """Wait for tasks that are done with the program: their exit handlers and threads have their time, and last words."""
        until = self._clock.monotonic() + self._plan.job["limits"]["exit_wait_s"]
        while self._done() - self._codes.keys() and self._clock.monotonic() < until and self._ending.asked() is None:
            self._clock.sleep(_POLL_S)
            self._reap()

    def _done(self) -> set[str]:
        """Return the tasks whose program is over and has not failed; their processes may still be there."""
        paths = self._plan.paths
        found = [*posix.list_names(paths.events), *(name for name, _ in reserve.read(paths.reserves))]
        names = [name.split(".") for name in found if name.endswith(".done.json")]
        return {source for attempt, source, *_ in names if int(attempt) == self._attempt}

    def _asked_to_leave(self) -> bool:
        folder = Path(self._plan.paths.rendezvous(self._attempt, 0)).parent
        return any(
            json.loads((folder / name).read_bytes())["action"] == "stop" for name in posix.list_names(str(folder))
        )

    def note(self, kind: str, **data: object) -> None:
        """Record what becomes of this attempt."""
        self._recorder.record(kind, **data)

    def _hung(self, hang: Hang) -> Verdict:
        """Have every task that is left write its Python stacks into its log, and return the verdict."""
        log = self._plan.paths.log(self._attempt, hang.task)
        for name, process in self._tasks.items():
            if name not in self._codes:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(process.pid, signal.SIGUSR2)
        self._clock.sleep(_STACKS_S)
        failure = Failure(task=hang.task, message=hang.message, traceback=last_lines(log, _TAIL_LINES), log=log)
        return failed(Reason.HUNG, failure)

    def _tasks_verdict(self) -> Verdict | None:
        """Return the verdict that follows from what the tasks did; None while there is none."""
        if self._codes.get(self._plan.tasks[0]) == 0:
            return Verdict(state=State.SUCCEEDED, reason=Reason.DONE)
        if EXIT_CHECKPOINTED in self._codes.values():
            return Verdict(state=State.CHECKPOINTED, reason=Reason.CHECKPOINTED)
        records = self._failure_records()
        recorded = {event.source for event in records}
        silent = [name for name, code in self._codes.items() if code != 0 and name not in recorded]
        record = first_failure(records, self._attempt)
        if record is None and not silent:
            return None
        first = self._plan.tasks[0]
        # The end of a first task that is done explains what its peers die of, and may take its time: it has exit handlers.
        done = first not in self._codes and first in self._done()
        echo = record is None or is_collateral(record)
        if echo and (not silent or (done and all(self._codes[name] == -signal.SIGABRT for name in silent))):
            wait_s = self._plan.job["limits"]["exit_wait_s"] if done else _ECHO_S
            # Its peer died of something that will be known in a moment.
            self._echo_until = self._echo_until or self._clock.monotonic() + wait_s
            if self._clock.monotonic() < self._echo_until:
                return None
        if first not in self._codes and spawn.is_leaving(self._tasks[first]):
            # Others may fail because it has ended; how it has ended is known in a moment.
            return None
        return self._explain(record, silent)

    def _reap(self) -> None:
        self._stamps.look()
        self._pauses.look()
        for name, process in self._tasks.items():
            if name not in self._codes and spawn.has_exited(process):
                # What the task has started must not outlive it.
                spawn.end_group(process)
                self._spent[name] = exit_reasons.cpu_limit(process.pid)
                self._codes[name] = process.wait()
                self._recorder.record("exited", task=name, code=process.returncode)

    def _failure_records(self) -> list[Event]:
        names = posix.list_names(self._plan.paths.events)
        if not any(self._codes.values()) and not any(name.endswith(".failed.json") for name in names):
            return []
        events = read_events(self._plan.paths, ("failed",))
        return [event for event in events if event.attempt == self._attempt]

    def _explain(self, record: Event | None, silent: list[str]) -> Verdict:
        # A peer that died without a word explains an echo better than the echo does, and SIGKILL explains everything:
        # TensorFlow ends a process by SIGABRT when a peer is gone, but nobody's error kills another task.
        silent = sorted(silent, key=lambda name: self._codes[name] != -signal.SIGKILL)
        killed = bool(silent) and self._codes[silent[0]] == -signal.SIGKILL
        if record is not None and not killed and not (silent and is_collateral(record)):
            log = self._plan.paths.log(self._attempt, record.source)
            message = f"{record.source} failed: {error_of(record)}"
            left = [task for task in cluster.in_step(self._plan.tasks) if self._codes.get(task) == 0]
            if hint := self._hint(record):
                message = f"{message}: {hint}."
            if is_lost_peer(record):
                stopped = [name for name, process in self._tasks.items() if spawn.is_stopped(process.pid)]
                message = exit_reasons.of_lost_peers(
                    message, left=left, stopped=stopped, paused_s=self._pauses.longest_s
                )
            failure = Failure(task=record.source, message=message, traceback=record.data["traceback"], log=log)
            return failed(reason_of(record, left), failure)
        name = silent[0]
        code = self._codes[name]
        log = self._plan.paths.log(self._attempt, name)
        memory = self._memory.ended(self._tasks[name].pid) if killed else OutOfMemory.UNKNOWN
        reason, said = exit_reasons.describe(code, memory, self._spent.get(name))
        return failed(
            reason, Failure(task=name, message=f"{name} {said}", traceback=last_lines(log, _TAIL_LINES), log=log)
        )

    def _hint(self, record: Event) -> str:
        """Return what an error of the system means here; "" where it speaks for itself."""
        places = (self._plan.paths.url, self._temporary)
        full = next(filter(None, map(os_errors.full, places)), "") if is_disk_full(record) else ""
        return full or exit_reasons.hint(str(record.data.get("type")), str(record.data.get("message")))

    def _let_end(self, grace_s: float) -> None:
        """Wait for tasks that ask between their steps whether to stop; one that has never reported a step does not."""
        asked = self._clock.monotonic()
        asking = cluster.in_step(self._plan.tasks)
        beats = [read_progress(self._plan.paths.progress(self._attempt, task)) for task in asking]
        while any(beat is not None and beat[1] for beat in beats) and not self._codes.keys() >= set(asking):
            wish = self._ending.cancel_grace()
            if self._clock.monotonic() >= asked + (grace_s if wish is None else min(grace_s, wish)):
                return
            self._clock.sleep(_POLL_S)
            self._reap()

    def _stop(self, grace_s: float) -> None:
        """End what is left: SIGTERM, `grace_s` seconds, SIGKILL, for every process of every task."""
        left = [process for name, process in self._tasks.items() if name not in self._codes]
        for process in left:
            spawn.signal_group(process, signal.SIGTERM)
        asked = self._clock.monotonic()
        while len(self._codes) < len(self._tasks) and self._clock.monotonic() < asked + grace_s:
            self._clock.sleep(_POLL_S)
            self._reap()
            wish = self._ending.cancel_grace()
            grace_s = grace_s if wish is None else min(grace_s, wish)
        for process in left:
            if process.returncode is None:
                spawn.end_group(process)
        # Only _reap waits for a task: it ends the task's group before the group's number can be another's.
        until = self._clock.monotonic() + _KILL_S
        while len(self._codes) < len(self._tasks) and self._clock.monotonic() < until:
            self._reap()
            self._clock.sleep(_POLL_S / 10)
        self._leave(spawn.end_orphans())

    def _leave(self, pids: Sequence[int]) -> None:
        """Say which processes stay, because this user may not end them."""
        if pids and not self._left:
            self._left = True
            those = ", ".join(spawn.described(pid) for pid in pids)
            text = f"Processes of another user could not be ended, and may still run: {those}. Next: end them as that user."
            self._recorder.record("finding", text=text)
