"""One attempt of a run: starts every task, watches them, finds out why it ended, leaves nobody behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ... import cluster, processes
from ...clock import Clock
from ...errors import EXIT_CHECKPOINTED
from ...events import Event, first_failure, is_collateral
from ...planner import Plan
from ...status import Failure, Reason, State
from ...storage import posix
from ...storage.records import Recorder, read_events
from . import render
from .ports import Reservation

_POLL_S = 0.05
# How long a task whose error is an echo ("peer unavailable") may wait for the record of the peer that caused it.
_ECHO_S = 3.0
# Tasks that are stopped because another one has decided the run have nothing left to say.
_DECIDED_GRACE_S = 2.0
_TAIL_LINES = 20


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """How an attempt ended."""

    state: State
    reason: Reason
    failure: Failure | None = None


class Gang:
    """The tasks of one attempt.

    Args:
        plan: the run.
        attempt: counts from 1.
        named: whether the cluster's host names resolve here; else all tasks are "localhost".
        clock: what time it is.
    """

    def __init__(self, plan: Plan, attempt: int, *, named: bool, clock: Clock) -> None:
        self._plan = plan
        self._attempt = attempt
        self._clock = clock
        self._recorder = Recorder(plan.paths, "supervisor", attempt, clock)
        self._reservation = Reservation(plan.tasks)
        self._tasks: dict[str, subprocess.Popen[bytes]] = {}
        self._codes: dict[str, int] = {}
        self._host: Callable[[cluster.Task], str] = (
            (lambda task: cluster.host_name(task, plan.run_id)) if named else (lambda task: "localhost")
        )

    def run(self, interrupted: Callable[[], bool], deadline: float | None) -> Verdict:
        """Start the tasks and return the verdict when all of them are gone.

        Args:
            interrupted: True once the supervisor itself was told to stop.
            deadline: monotonic time at which the run is over, in seconds.
        """
        try:
            self._start()
            verdict, grace_s = self._watch(interrupted, deadline)
            self._recorder.record("stopping", state=verdict.state.value, reason=verdict.reason.value)
            self._stop(grace_s)
            return verdict
        finally:
            self._stop(0.0)
            self._reservation.close()
            shutil.rmtree(self._plan.paths.temporary, ignore_errors=True)

    def _start(self) -> None:
        plan, paths = self._plan, self._plan.paths
        addresses = {task.name: f"{self._host(task)}:{self._reservation.ports[task.name]}" for task in plan.members}
        posix.put_new(paths.payload(self._attempt), plan.payload(self._attempt).to_json().encode())
        shared = render.inherited(os.environ)
        for folder in (paths.model, paths.checkpoints, paths.tensorboard):
            Path(folder).mkdir(parents=True, exist_ok=True)
        pids = {}
        for task in plan.members:
            log = paths.log(self._attempt, task.name)
            work = Path(paths.work(self._attempt, task.name)).parent
            for place in (work, Path(paths.scratch(self._attempt, task.name)), Path(log).parent):
                place.mkdir(parents=True, exist_ok=True)
            env = {
                **shared,
                **render.environment(plan, self._attempt, task, addresses),
                "PODLIFT_PARENT": str(os.getpid()),
            }
            command = render.command(plan, self._attempt, task.name)
            self._tasks[task.name] = processes.spawn(command, env=env, cwd=str(work), log=log)
            pids[task.name] = self._tasks[task.name].pid
        self._recorder.record("attempt_started", addresses=addresses, pids=pids)

    def _watch(self, interrupted: Callable[[], bool], deadline: float | None) -> tuple[Verdict, float]:
        """Wait for whatever ends the attempt; return it and how long the tasks may take to stop, in seconds."""
        primary, limits = self._plan.tasks[0], self._plan.job["limits"]
        echo_until: float | None = None
        while True:
            self._reap()
            if Path(self._plan.paths.cancel).exists():
                return Verdict(state=State.CANCELLED, reason=Reason.CANCELLED), self._cancel_grace()
            if interrupted():
                failure = Failure(task="", message="The supervisor was told to stop by a signal.")
                return self._failed(Reason.INFRASTRUCTURE, failure), limits["grace_s"]
            now = self._clock.monotonic()
            if deadline is not None and now >= deadline:
                failure = Failure(task="", message=f"The run took longer than timeout_s={limits['timeout_s']}.")
                return self._failed(Reason.TIMEOUT, failure), limits["grace_s"]
            if EXIT_CHECKPOINTED in self._codes.values():
                return Verdict(state=State.CHECKPOINTED, reason=Reason.CHECKPOINTED), limits["grace_s"]
            record = self._failure_record()
            dead = next((name for name, code in self._codes.items() if code != 0), None)
            if record is None and dead is None:
                if self._codes.get(primary) == 0:
                    return Verdict(state=State.SUCCEEDED, reason=Reason.DONE), _DECIDED_GRACE_S
            elif record is None or not is_collateral(record) or (echo_until is not None and now >= echo_until):
                return self._explain(record, dead), min(_DECIDED_GRACE_S, limits["grace_s"])
            elif echo_until is None:
                echo_until = now + _ECHO_S
            self._clock.sleep(_POLL_S)

    def _reap(self) -> None:
        for name, process in self._tasks.items():
            if name not in self._codes and process.poll() is not None:
                self._codes[name] = process.returncode
                # What the task has started must not outlive it.
                processes.signal_group(process, signal.SIGKILL)
                self._recorder.record("exited", task=name, code=process.returncode)

    def _failure_record(self) -> Event | None:
        names = posix.list_names(self._plan.paths.events)
        if not any(name.endswith(".failed.json") for name in names):
            return None
        return first_failure(read_events(self._plan.paths), self._attempt)

    def _explain(self, record: Event | None, dead: str | None) -> Verdict:
        # A peer that died without a word explains an echo better than the echo does.
        silent = next((name for name, code in self._codes.items() if code != 0 and not self._has_record(name)), None)
        if record is not None and not (is_collateral(record) and silent is not None):
            log = self._plan.paths.log(self._attempt, record.source)
            message = f"{record.source} failed: {record.data['type']}: {record.data['message']}"
            failure = Failure(task=record.source, message=message, traceback=record.data["traceback"], log=log)
            return self._failed(Reason(record.data.get("reason", Reason.USER_ERROR.value)), failure)
        name = silent or dead or self._plan.tasks[0]
        code = self._codes.get(name, 1)
        log = self._plan.paths.log(self._attempt, name)
        said = f"was killed by {_signal_name(-code)}" if code < 0 else f"ended with exit code {code} and no traceback"
        failure = Failure(task=name, message=f"{name} {said}.", traceback=_tail(log), log=log)
        return self._failed(Reason.KILLED if code < 0 else Reason.USER_ERROR, failure)

    def _has_record(self, task: str) -> bool:
        events = read_events(self._plan.paths)
        return any(e.kind == "failed" and e.source == task and e.attempt == self._attempt for e in events)

    def _failed(self, reason: Reason, failure: Failure) -> Verdict:
        return Verdict(state=State.FAILED, reason=reason, failure=failure)

    def _cancel_grace(self) -> float:
        try:
            return float(json.loads(Path(self._plan.paths.cancel).read_bytes())["grace_s"])
        except (ValueError, KeyError, TypeError):
            return float(self._plan.job["limits"]["grace_s"])

    def _stop(self, grace_s: float) -> None:
        """End what is left: SIGTERM, `grace_s` seconds, SIGKILL, for every process of every task."""
        left = [process for name, process in self._tasks.items() if name not in self._codes]
        for process in left:
            processes.signal_group(process, signal.SIGTERM)
        until = self._clock.monotonic() + grace_s
        while any(process.poll() is None for process in left) and self._clock.monotonic() < until:
            self._clock.sleep(_POLL_S)
        for process in left:
            processes.signal_group(process, signal.SIGKILL)
            process.wait()
        self._reap()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _tail(log: str) -> str:
    try:
        with open(log, "rb") as file:  # noqa: PTH123
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - 64 * 1024))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except FileNotFoundError:
        return ""
    return "\n".join(lines[-_TAIL_LINES:])
