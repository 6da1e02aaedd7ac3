"""The verbs that look at what exists, and end it: runs, status, logs, wait, cancel."""

from __future__ import annotations

import datetime
import os
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from .. import api
from ..clock import SystemClock
from ..errors import EXIT_CANCELLED, EXIT_DONE, WaitTimeoutError
from ..explanation import MEANINGS
from ..roots import configured_root
from ..run import RunInfo
from ..status import State, Status
from ..tracebacks import one_line
from .lines import Printer
from .output import EXIT_DETACHED, answer, as_json, numbers, say, summary
from .start import Json, Root, reference
from .watch import conclude, follow, on_terminal

Ref = Annotated[
    str,
    typer.Argument(
        metavar="REF", help="a run: its id, the beginning of one, latest, or its directory", show_default=False
    ),
]
Limit = Annotated[int, typer.Option("--limit", metavar="N", min=1, help="at most so many")]
Task = Annotated[str | None, typer.Option("--task", metavar="T", help="one, such as chief-0", show_default=False)]
Attempt = Annotated[int | None, typer.Option("--attempt", metavar="N", min=1, help="one of them", show_default=False)]
Follow = Annotated[bool, typer.Option("-f", "--follow", help="go on until the run has ended")]
Timeout = Annotated[
    float | None, typer.Option("--timeout-s", metavar="SECONDS", min=0, help="at most so long", show_default=False)
]
Grace = Annotated[
    float | None,
    typer.Option("--grace-s", metavar="SECONDS", min=0, help="between SIGTERM and SIGKILL", show_default=False),
]


def runs(root: Root = None, limit: Limit = 20, json_output: Json = False) -> None:
    """List the newest runs."""
    found = api.runs(root=root, limit=limit)
    if json_output:
        keys = [
            {
                "id": info.id,
                "url": info.url,
                "state": info.status.state.value if info.status else None,
                "reason": info.status.reason.value if info.status else "corrupt",
                "created": info.status.created if info.status else None,
                "problem": info.problem,
            }
            for info in found
        ]
        as_json(keys)
        return
    rows = [(info.id, _state(info), _when(info), info.problem or info.url) for info in found]
    if not on_terminal():
        for row in rows:
            answer("\t".join(row))
        return
    table = Table("run", "state", "submitted", "directory", box=None)
    for row in rows:
        table.add_row(*map(Text, row))
    Console().print(table)


def status(ref: Ref, root: Root = None, json_output: Json = False) -> None:
    """Show how a run is doing, in a few lines; `podlift why` tells the whole story."""
    run = api.attach(ref, root=root)
    now = run.status()
    if json_output:
        as_json(summary(run, now))
        return
    lines = [("run", run.id), ("state", f"{now.state.value} ({now.reason.value})")]
    lines += [("error", one_line(now.failure.message))] if now.failure else []
    lines += [("why", MEANINGS[now.reason])] if MEANINGS[now.reason] and not now.failure else []
    lines += [("directory", run.url)]
    lines += [("attempts", str(now.attempts)), ("tasks", ", ".join(run.plan.tasks))]
    lines += [("timings", ", ".join(f"{name} {seconds:.1f} s" for name, seconds in now.timings.items()))]
    lines += [("saved", _saved(now))]
    lines += [("vendor", f"{now.vendor} {now.console}")] if now.vendor else []
    lines += [("metrics", numbers(run.last_metrics()))]
    answer("\n".join(f"{name:<10} {text}" for name, text in lines))
    next_line = f"Next: podlift why {reference(run)}" if now.failure else run.why().rpartition("\n")[2]
    answer(f"\n{next_line}")


def why(ref: Ref, root: Root = None) -> None:
    """Say in words how a run is: since when, why, what it waits for, and what to type next."""
    answer(api.attach(ref, root=root).why())


def logs(ref: Ref, task: Task = None, attempt: Attempt = None, follow_logs: Follow = False, root: Root = None) -> None:
    """Print what the tasks wrote, as a terminal would leave it; with several tasks, each line behind its task's name."""
    run = api.attach(ref, root=root)
    prefixed = task is None and len(run.plan.tasks) > 1
    printer = Printer(prefixed=prefixed, following=follow_logs, terminal=on_terminal(), clock=SystemClock())
    try:
        for line in run.logs(task=task, attempt=attempt, follow=follow_logs):
            printer.show(line)
        printer.close()
    except KeyboardInterrupt:
        say("Left the logs; the run is not touched.")
        raise typer.Exit(EXIT_DETACHED) from None
    if follow_logs:
        now = run.status()
        say(f"{run.id} is {now.state.value} ({now.reason.value}).")


def wait(ref: Ref, timeout_s: Timeout = None, root: Root = None, json_output: Json = False) -> None:
    """Wait for the end of a run; the exit code is the run's."""
    run = api.attach(ref, root=root)
    shown = run.id if configured_root(root, os.environ) == run.plan.root else run.url
    problems = {}
    try:
        if timeout_s is None:
            code = follow(run, shown, quiet=json_output)
        else:
            code = conclude(run, run.wait(timeout_s), shown, quiet=json_output)
    except WaitTimeoutError as error:
        say(f"podlift: {error}")
        code, problems = error.exit_code, {"problems": [str(error)]}
    if json_output:
        as_json({**summary(run, run.status()), **problems})
    raise typer.Exit(code)


def cancel(ref: Ref, grace_s: Grace = None, root: Root = None) -> None:
    """End a run, and wait until it has ended; one that has ended stays as it is."""
    run = api.attach(ref, root=root)
    run.cancel(grace_s)
    ended = run.wait()
    say(f"{run.id} is {ended.state.value} ({ended.reason.value}).")
    raise typer.Exit(EXIT_DONE if ended.exit_code == EXIT_CANCELLED else ended.exit_code or EXIT_DONE)


def _saved(status: Status) -> str:
    if status.saved_step is None or status.saved_at is None:
        return "no checkpoint"
    until = status.since if status.state.terminal else SystemClock().now()
    risk = "" if status.state is State.SUCCEEDED else f": {max(until - status.saved_at, 0.0) / 60:.1f} min at risk"
    when = datetime.datetime.fromtimestamp(status.saved_at).strftime("%H:%M:%S")
    return f"step {status.saved_step} at {when}{risk}"


def _state(info: RunInfo) -> str:
    return f"{info.status.state.value} ({info.status.reason.value})" if info.status else "UNREADABLE"


def _when(info: RunInfo) -> str:
    if info.status is None or not info.status.created:
        return "-"
    return datetime.datetime.fromtimestamp(info.status.created).astimezone().strftime("%Y-%m-%d %H:%M:%S")
