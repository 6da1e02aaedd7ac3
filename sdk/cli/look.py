"""The verbs for existing runs: list, status, why, logs, wait, cancel."""

from __future__ import annotations

import datetime
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import cast

import typer

from .. import api
from ..clock import SystemClock
from ..errors import PodliftError, WaitTimeoutError
from ..model_registry.models import Model
from ..planning.references import LATEST, shortest
from ..records.explain import MEANINGS, next_command
from ..records.machine import machine_use
from ..records.recorder import position
from ..records.spending import Spent
from ..run import Run, RunInfo
from ..status import EXIT_CANCELLED, EXIT_DONE, EXIT_INFRASTRUCTURE, Reason, Registered, State, Status, at_risk_s
from ..text import and_more, counted, duration, milestones, money
from ..tracebacks import one_line
from . import parameters as p
from .lines import Printer, is_whole, since_then, too_many
from .output import (
    EXIT_DETACHED,
    answer,
    as_json,
    end_with_reader,
    goodput_line,
    machine_line,
    numbers,
    relayed,
    say,
    seconds,
    spent,
    summary,
)
from .pace import MetricRecord, recorded_pace
from .screen import facts, on_terminal, table, width
from .watch import conclude, follow, waited

_NAMED = 6
_WIDE = 100  # columns from which the list has room for the address of an emulator
# Reasons that add nothing to the state.
_PLAIN = (Reason.TRAINING, Reason.DONE, Reason.CANCELLED, Reason.CHECKPOINTED, Reason.SUPERVISOR_LOST, Reason.JOB_LOST)


def list_runs(
    root: p.Root = None,
    limit: p.Limit = 20,
    state: p.States = None,
    name: p.Label = None,
    backend: p.Backend = None,
    json_output: p.Json = False,
) -> None:
    """List the newest runs of every configured backend, with state, age, duration, metric and backend.

    If one of several roots cannot be listed, the others are, and the exit code is 3.
    """
    runs, problems = api.list_runs(root, limit, backend, state or (), name)
    now = SystemClock().now()
    at = " at " if on_terminal() and (width(sys.stdout) or 0) < _WIDE else "\n"
    if json_output:
        as_json([_line(info, now) for info in runs])
    else:
        rows: list[tuple[str, ...]] = [
            (info.id, _state(info), *_times(info, now), _metric(info), info.problem or info.place.partition(at)[0])
            for info in runs
        ]
        columns: tuple[str, ...] = ("run", "state", "age", "took", "metric", "backend")
        if any(info.status and info.status.spent_usd is not None for info in runs):
            columns, rows = (*columns, "spent"), [(*row, _spent(info)) for row, info in zip(rows, runs, strict=True)]
        states = [info.status.state if info.status else None for info in runs]
        table(columns, rows, whole=("run", "age", "took"), states=states)
    for problem in problems:
        say(f"podlift: {' '.join(problem.split())}")
    if problems:
        raise typer.Exit(EXIT_INFRASTRUCTURE)


def _line(info: RunInfo, now: float) -> dict[str, object]:
    status = info.status
    return {
        "id": info.id,
        "url": info.url,
        "state": status.state.value if status else None,
        "reason": status.reason.value if status else "corrupt",
        "created": status.created if status else None,
        "duration_s": info.duration_s(now),
        "attempts": status.attempts if status else None,
        "restarted_alone": status.restarted_alone if status else None,
        "backend": info.backend,
        "emulator": info.emulator,
        "spent": spent(status) if status else None,
        "metric": info.metric,
        "metrics": dict(info.metrics),
        "problem": info.problem,
    }


def _model(run: Run, registered: Registered) -> str:
    """Return the outcome for a run's model, at its end and since then."""
    if registered.outcome in ("registered", "asks"):
        with suppress(PodliftError):
            model = Model(run.plan.root, registered.model)
            if any(move.champion == registered.version for move in model.history()):
                return f"{registered.line}. Since then it has become the champion"
    return str(registered)


def status(
    ref: p.ReadRef = LATEST, root: p.Root = None, each_task: p.EachTask = False, json_output: p.Json = False
) -> None:
    """Show the state of a run in a few lines."""
    run = api.attach(ref, root=root)
    now = run.status()
    if json_output:
        as_json(summary(run, now))
        return
    lines = [("run", run.id), ("state", f"{now.state.value} ({now.reason.value})")]
    lines += [("error", one_line(now.failure.message))] if now.failure else []
    lines += [("why", MEANINGS[now.reason])] if MEANINGS[now.reason] and not now.failure else []
    lines += [("finding", text) for text in now.findings]
    lines += [("model", _model(run, now.registered))] if now.registered else []
    lines += [("backend", run.plan.place), ("directory", run.url)]
    progress = run.progress()
    if progress is not None and not now.state.terminal:
        pace = recorded_pace(progress, cast("list[MetricRecord]", run.metric_records()), run.plan.job.limits.max_steps)
        lines += [("progress", pace + (f", step {progress.step} in total" if progress.epoch else ""))]
    alone = and_more([f"{task} {counted(number, 'time')}" for task, number in now.restarted_alone.items()], _NAMED)
    # The last report of killed containers may be seconds old.
    is_exact = run.plan.capabilities.runs_here or now.state in (State.CANCELLED, State.CHECKPOINTED)
    step = progress.step if progress is not None and now.state.terminal and is_exact else None
    lines += [("attempts", f"{now.attempts}" + (f"; restarted alone in the last one: {alone}" if alone else ""))]
    lines += [("tasks", and_more(run.plan.tasks, len(run.plan.tasks) if each_task else _NAMED))]
    lines += [("task", f"{task}: {_position(run, task)}") for task in run.plan.tasks if each_task]
    lines += [("timings", milestones(now.timings))]
    lines += _goodput(run, run.plan.tasks if each_task else run.plan.tasks[:1])
    lines += _machine(run, ended=now.state.terminal) if each_task else []
    lines += [("saved", _saved(now, step))]
    most = run.plan.job.limits.max_cost_usd
    limit = "" if most is None else f"; the limit is {money(most)}"
    lines += [("spent", f"{Spent.of(now)}, without boot disks{limit}")] if now.spent_usd is not None else []
    lines += [("spent", "nothing: the emulator bills nothing")] if run.plan.emulator and run.plan.rentals else []
    # The state of its job may differ from that of a run that ended in order.
    vendor = "" if now.state.terminal and not now.failure else now.vendor
    lines += [("vendor", f"{vendor} {now.console}".strip())] if vendor or now.console else []
    lines += [("metrics", numbers(run.last_metrics()))]
    answer(facts([line for line in lines if line[1]], width(sys.stdout), now.state), colours=True)
    ref = shortest(run.plan, os.environ)
    command = next_command(now, ref, generated=bool(run.plan.code.generated))
    unclear = now.failure or (now.vendor and now.state is State.PENDING)
    answer(f"\nNext: {f'podlift why {ref}' if unclear else command}")


def _machine(run: Run, *, ended: bool) -> list[tuple[str, str]]:
    run.metric_records()  # brings the files of a run in a bucket
    used = [machine_use(run.plan.paths, task) for task in run.plan.tasks]
    return [("machine", f"{use.task}: {machine_line(use, ended=ended)}") for use in used if use is not None]


def _position(run: Run, task: str) -> str:
    progress = position(run.plan.paths, task)
    return (
        "no step"
        if progress is None
        else str(progress) + (f", step {progress.step} in total" if progress.epoch else "")
    )


def _goodput(run: Run, tasks: Sequence[str]) -> list[tuple[str, str]]:
    of_tasks = [(task, run.goodput(task)) for task in tasks]
    named = [(f"{task}: " if len(tasks) > 1 else "", spent) for task, spent in of_tasks]
    return [("goodput", f"{name}{goodput_line(spent) if spent else 'not recorded'}") for name, spent in named]


def why(ref: p.ReadRef = LATEST, root: p.Root = None) -> None:
    """Explain the state of a run and what to do next.

    It says why the run waits or failed, what happened when, and the next command.
    """
    answer(api.attach(ref, root=root).why())


def logs(
    ref: p.ReadRef = LATEST,
    task: p.Task = None,
    attempt: p.Attempt = None,
    follow_logs: p.Follow = False,
    lines: p.Lines = None,
    since: p.Since = None,
    timestamps: p.Timestamps = False,
    root: p.Root = None,
) -> None:
    """Print the output of the tasks, as a terminal would show it.

    With several tasks, each line begins with its task's name.
    """
    clock = SystemClock()
    after = None if since is None else clock.now() - seconds("--since", since)
    run = api.attach(ref, root=root)
    prefixed = task is None and len(run.plan.tasks) > 1
    printer = Printer(
        prefixed=prefixed, following=follow_logs, terminal=on_terminal(), clock=clock, timestamps=timestamps
    )
    if follow_logs:
        end_with_reader()
    try:
        with relayed("backends"):
            there = run.logs(task=task, attempt=attempt) if lines is not None else iter(())
            skipped = too_many(since_then(there, after), lines)
            for line in since_then(run.logs(task=task, attempt=attempt, follow=follow_logs), after):
                if skipped > 0:
                    skipped -= is_whole(line)
                else:
                    printer.show(line)
            printer.close()
    except KeyboardInterrupt:
        say("Stopped printing the logs. The run is not affected.")
        raise typer.Exit(EXIT_DETACHED) from None
    if follow_logs:
        now = run.status()
        say(f"{run.id} is {now.state.value} ({now.reason.value}).")


def wait(ref: p.ReadRef = LATEST, timeout: p.Timeout = None, root: p.Root = None, json_output: p.Json = False) -> None:
    """Wait for the end of a run, and exit with its exit code."""
    timeout_s = None if timeout is None else seconds("--timeout", timeout)
    run = api.attach(ref, root=root)
    short_ref = shortest(run.plan, os.environ)
    problems = {}
    try:
        if timeout_s is None:
            code = follow(run, short_ref, quiet=json_output)
        else:
            code = conclude(run, waited(run, timeout_s), short_ref, quiet=json_output)
    except WaitTimeoutError as error:
        say(f"podlift: {error}")
        code, problems = error.exit_code, {"problems": [str(error)]}
    if json_output:
        as_json({**summary(run, run.status()), **problems})
    raise typer.Exit(code)


def cancel(ref: p.Ref, grace: p.Grace = None, root: p.Root = None) -> None:
    """Cancel a run and wait until it has ended.

    A run that has already ended stays as it is.
    """
    grace_s = None if grace is None else seconds("--grace", grace)
    run = api.attach(ref, root=root)
    run.cancel(grace_s)
    ended = waited(run, None)
    say(f"{run.id} is {ended.state.value} ({ended.reason.value}).")
    raise typer.Exit(EXIT_DONE if ended.exit_code == EXIT_CANCELLED else ended.exit_code or EXIT_DONE)


def _saved(status: Status, last: int | None) -> str:
    """Return the last checkpoint, and how much of the training is lost without it; `last`: the last step, if that is known."""
    over = status.state.terminal or status.reason is Reason.EVALUATING
    paced = "" if over or status.saved_every_s is None else f"; saved every {status.saved_every_s:.0f} s"
    if status.saved_step is None or status.saved_at is None:
        return f"no checkpoint{paced}"
    if last is not None and status.state is not State.SUCCEEDED:
        steps = last - status.saved_step
        where = f"{counted(steps, 'step')} before the last one" if steps > 0 else "the last step: nothing is lost"
        return f"step {status.saved_step}, {where}"
    risk_s = at_risk_s(status, SystemClock().now())
    risk = "" if risk_s is None else f": {duration(risk_s)} at risk"
    when = datetime.datetime.fromtimestamp(status.saved_at).strftime("%H:%M:%S")
    return f"step {status.saved_step} at {when}{risk}{paced}"


def _state(info: RunInfo) -> str:
    if info.status is None:
        return "UNREADABLE"
    plain = info.status.reason in _PLAIN
    return info.status.state.value + ("" if plain else f" {info.status.reason.value}")


def _spent(info: RunInfo) -> str:
    if info.status is None or info.status.spent_usd is None:
        return "-"
    return f"{'at least ' if info.status.spent_at_least else ''}{money(info.status.spent_usd)}"


def _times(info: RunInfo, now: float) -> tuple[str, str]:
    took = info.duration_s(now)
    if took is None or info.status is None:
        return "-", "-"
    return duration(now - info.status.created, units=1), duration(took)


def _metric(info: RunInfo) -> str:
    if not info.metric:
        return "-"
    value = info.metrics[info.metric]
    return f"{info.metric} {'nan' if value is None else f'{value:.4g}'}"
