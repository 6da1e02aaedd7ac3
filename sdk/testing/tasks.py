"""Kills or preempts tasks of a running run.

Usage: `tasks.wait_for_step(run, 20); tasks.kill(run, "worker-0")`

Prefer a drill where possible: it kills at an exact step and reports the lost steps.
"""

from __future__ import annotations

import signal

from ..clock import SystemClock
from ..drill.goodput import kill_task
from ..errors import InputError, WaitTimeoutError, nearest
from ..records.recorder import last_step
from ..run import Run

_POLL_S = 0.02


def wait_for_step(run: Run, step: int, *, task: str | None = None, timeout_s: float = 120.0) -> None:
    """Wait until a task has done this many training steps in the current attempt.

    Args:
        run: the run.
        step: the steps; the steps of a custom loop are counted over all attempts.
        task: its name; the first one by default.
        timeout_s: the longest wait, in seconds.

    Raises:
        InputError: the run has no such task, or ended before that step.
        WaitTimeoutError: `timeout_s` elapsed.
    """
    clock = SystemClock()
    name = _task(run, task or run.plan.tasks[0])
    until = clock.monotonic() + timeout_s
    while True:
        status = run.status()
        if (last_step(run.plan.paths, status.attempts, name) or 0) >= step:
            return
        if status.state.terminal:
            raise InputError(f"The run {run.id} is {status.state.value} and did not reach step {step}.")
        if clock.monotonic() >= until:
            raise WaitTimeoutError(f"{name} of {run.id} did not reach step {step} within {timeout_s} s.")
        clock.sleep(_POLL_S)


def kill(run: Run, task: str) -> None:
    """Kill a task with SIGKILL; InputError if the run has no such task, or it is not running."""
    _signal(run, task, signal.SIGKILL)


def preempt(run: Run, task: str) -> None:
    """Send SIGTERM to a task, as a preemption does; InputError as for `kill`."""
    _signal(run, task, signal.SIGTERM)


def _signal(run: Run, task: str, number: int) -> None:
    name = _task(run, task)
    status = run.status()
    if status.state.terminal or not kill_task(run, name, status.attempts, number):
        raise InputError(
            f"{name} of {run.id} is not running: the run is {status.state.value}, attempt {status.attempts}."
        )


def _task(run: Run, name: str) -> str:
    if name not in run.plan.tasks:
        raise InputError(f"The run {run.id} has no task {name!r}. {nearest(name, run.plan.tasks)}")
    return name
