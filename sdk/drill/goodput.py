"""The drill of a training's goodput: it is trained for a while, a task is killed every few minutes, and its time is accounted.

Everything else is as in a run of the user's: the settings, and the way back after each kill. Only the restart budget is raised.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace

from .. import launch
from ..clock import Clock
from ..errors import PodliftError, Problems
from ..job.job import Job
from ..job.plan import Plan
from ..logs import logger
from ..planning.settings.merge import Destination, Entry
from ..process.janitor import is_marked
from ..records.events import Event
from ..records.recorder import read_events
from ..run import Run
from ..status import EXIT_DONE, EXIT_INFRASTRUCTURE, EXIT_USER, Goodput, State, Status
from ..text import counted, duration
from . import runs

_log = logger("drill")

FOR_S, KILL_EVERY_S, AT_LEAST = 3600.0, 600.0, 0.95
_POLL_S, _CANCEL_S = 0.2, 60.0
_PROCESSES = ("attempt_started", "task_restarting", "task_started", "exited")


@dataclass(frozen=True, kw_only=True)
class Disturbance:
    """The disturbances of a training in a goodput drill, in seconds, and the share of its time that has to remain."""

    for_s: float = FOR_S
    kill_every_s: float = KILL_EVERY_S
    at_least: float = AT_LEAST
    seed: int = 1

    @property
    def times(self) -> list[float]:
        """When the kills are due, in seconds after the submit."""
        count = int(self.for_s / self.kill_every_s)
        return [at for number in range(1, count + 1) if (at := number * self.kill_every_s) < self.for_s]


@dataclass(frozen=True, kw_only=True)
class TimedKill:
    task: str
    attempt: int
    at_s: float  # after the submit
    trains_again_s: float | None  # from the kill to the end of the next attempt's first step; None if there was none

    def __str__(self) -> str:
        again = self.trains_again_s
        then = "did not train again" if again is None else f"the next step was done {duration(again)} later"
        return f"{self.task} after {duration(self.at_s)}, in attempt {self.attempt}: {then}"


@dataclass(frozen=True, kw_only=True)
class GoodputReport:
    """The goodput of a training under kills."""

    state: State
    goodput: Goodput | None
    at_least: float
    attempts: int
    kills: tuple[TimedKill, ...]
    kills_missed: int  # the training had ended before
    run: str  # its directory
    message: str = ""  # why the training failed
    user_fault: bool = False

    @property
    def passed(self) -> bool:
        enough = self.goodput is not None and self.goodput.program_share >= self.at_least
        return enough and not self.kills_missed and not self.message

    @property
    def exit_code(self) -> int:
        if self.passed:
            return EXIT_DONE
        return EXIT_INFRASTRUCTURE if self.message and not self.user_fault else EXIT_USER

    def to_data(self) -> dict[str, object]:
        spent = self.goodput
        shares = {} if spent is None else {"share": spent.goodput, "program_share": spent.program_share}
        goodput = None if spent is None else {**shares, **asdict(spent)}
        derived = {"state": self.state.value, "goodput": goodput, "passed": self.passed, "exit_code": self.exit_code}
        return {**asdict(self), **derived}

    def __str__(self) -> str:
        lines = [self._sentence()]
        if self.goodput is not None:
            lines += [f"{name.replace('_', ' '):<17} {duration(spent)}" for name, spent in self.goodput.parts.items()]
            lines += [f"{'steps again':<17} {self.goodput.steps_lost}"]
        lines += [f"{'killed':<17} {kill}" for kill in self.kills]
        return "\n".join([*lines, f"{'run':<17} {self.run}"])

    def _sentence(self) -> str:
        if self.message:
            return f"failed: the training did not continue: {self.message}"
        if self.goodput is None:
            return "failed: no task has accounted its time"
        spent = self.goodput
        share = f"the program had {spent.program_share:.1%} of {duration(spent.total_s)}, and {spent.goodput:.1%} were steps"
        if self.kills_missed:
            missed = counted(self.kills_missed, "kill")
            return f"too short: the training ended before {missed}; {share}. Next: train for longer, or --for less"
        return f"{'passed' if self.passed else 'too low'}: {share}; it should have at least {self.at_least:.0%}"


def prepare_goodput(
    what: Entry | Job,
    flat_settings: Mapping[str, object],
    target: Destination,
    environ: Mapping[str, str],
    disturbance: Disturbance,
) -> Plan:
    """Return the plan of the training, or raise an InputError with every mistake."""
    problems, target = Problems(), replace(target, backend=target.backend or "local")
    name, backend = runs.backend_of(target)
    if backend is not None and not backend.capabilities.supervised_here:
        problems.add(
            f"A drill of the goodput kills processes of this machine. Received: --backend {name}. Next: leave it out; "
            "`podlift status` shows the goodput of every run."
        )
    if flat_settings.get("retry_infrastructure") is not None:
        problems.add("retry_infrastructure: a drill sets this itself. Next: leave it out.")
    if not 0 < disturbance.at_least <= 1:
        problems.add(
            f"The share of the program is above 0% and at most 100%. Received: --at-least {disturbance.at_least:.0%}."
        )
    if not disturbance.times:
        problems.add(
            f"A drill needs a kill. Received: one every {duration(disturbance.kill_every_s)}, for "
            f"{duration(disturbance.for_s)}. Next: --for longer than --kill-every."
        )
    with problems.closing():
        plan = runs.plan_of(what, flat_settings, target, environ)
    retry = replace(plan.job.retry, infrastructure=plan.job.retry.infrastructure + len(disturbance.times))
    return replace(plan, job=replace(plan.job, retry=retry))


def execute_goodput(plan: Plan, disturbance: Disturbance, clock: Clock) -> GoodputReport:
    """Train under kills, and report the goodput."""
    run = Run(launch.submit(plan))
    _log.info(f"{run.id}: {run.url}")
    try:
        killed, status = _disturb(run, disturbance, clock)
    finally:
        # It ends with its last step, as a user's run that is cancelled.
        with suppress(PodliftError):
            run.cancel()
            run.wait(_CANCEL_S + plan.job.limits.grace_s)
    events = read_events(run.plan.paths)
    failed = status.state.terminal and status.state is not State.SUCCEEDED
    failure = status.failure.message if status.failure else status.reason.value
    return GoodputReport(
        state=run.status().state,
        goodput=run.goodput(),
        at_least=disturbance.at_least,
        attempts=run.status().attempts,
        kills=tuple(_described(kill, events, status.created) for kill in killed),
        kills_missed=len(disturbance.times) - len(killed),
        run=run.url,
        message=failure if failed else "",
        user_fault=status.user_fault,
    )


@dataclass(frozen=True)
class _SentKill:
    task: str
    attempt: int
    time: float


def _disturb(run: Run, disturbance: Disturbance, clock: Clock) -> tuple[list[_SentKill], Status]:
    """Kill tasks when that is due; return the kills, and the status at the end of the time or of the training."""
    killed: list[_SentKill] = []
    # Nothing secret depends on it.
    chosen = random.Random(disturbance.seed)  # noqa: S311
    start, due = clock.monotonic(), list(disturbance.times)
    while True:
        status, passed_s = run.status(), clock.monotonic() - start
        if status.state.terminal or passed_s >= disturbance.for_s:
            return killed, status
        # If no task runs at the moment, the kill follows as soon as one does.
        if due and passed_s >= due[0] and kill_task(run, task := chosen.choice(run.plan.tasks), status.attempts):
            due.pop(0)
            killed.append(_SentKill(task, status.attempts, clock.now()))
            _log.info(f"{run.id}: {task} was killed after {duration(passed_s)}")
        clock.sleep(_POLL_S)


def kill_task(run: Run, task: str, attempt: int, number: int = signal.SIGKILL) -> bool:
    """Send a signal to a task of a run on this machine; False if it does not run."""
    pid: int | None = None
    for event in sorted(read_events(run.plan.paths, _PROCESSES), key=lambda event: (event.time, event.sequence)):
        if event.attempt != attempt:
            continue
        if event.kind == "attempt_started":
            pid = int(event.data["pids"][task])
        elif event.data["task"] == task:
            pid = int(event.data["pid"]) if event.kind == "task_started" else None
    # A record may hold any number: only a process of this run may get the signal.
    if pid is None or pid <= 1 or (sys.platform == "linux" and not is_marked(pid, run.plan.paths.url, set())):
        return False
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _described(kill: _SentKill, events: Sequence[Event], created: float) -> TimedKill:
    later = [event.time for event in events if event.kind == "first_step" and event.time > kill.time]
    again = round(min(later) - kill.time, 3) if later else None
    return TimedKill(task=kill.task, attempt=kill.attempt, at_s=round(kill.time - created, 3), trains_again_s=again)
