"""The verbs that test recovery from kills: drill, goodput."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

import typer

from .. import logs
from ..clock import SystemClock
from ..drill import KILLS, DrillReport, execute, prepare
from ..drill.goodput import AT_LEAST, Disturbance, GoodputReport, execute_goodput, prepare_goodput
from ..errors import Problems
from ..status import EXIT_CANCELLED
from .options import CommandLine, with_settings
from .output import answer, as_json, refusal, say, seconds
from .parameters import AtLeast, DrillBackend, For, Json, Kill, KillEvery, Name, Root, Seed, Words

_Report = TypeVar("_Report", DrillReport, GoodputReport)


@with_settings(backend=DrillBackend, root=Root, name=Name, words=Words)
def drill(command: CommandLine, kill: Kill = None, seed: Seed = 1, json_output: Json = False) -> None:
    """Train with and without kills, and compare the weights.

    Two trainings are undisturbed; in the third one, tasks are killed, and on an emulated cloud also their machines. The weights
    are compared bit by bit.
    """
    kills, problems = tuple(kill or KILLS), Problems()
    entry, settings = command.settings(problems)
    with problems.closing():
        plan = prepare(entry, settings, command.target, os.environ, kills=kills, seed=seed)
    _report(lambda: execute(plan, kills, SystemClock()), json_output=json_output)


@with_settings(backend=DrillBackend, root=Root, name=Name, words=Words)
def goodput(
    command: CommandLine,
    seed: Seed = 1,
    for_: For = "1h",
    kill_every: KillEvery = "10m",
    at_least: AtLeast = AT_LEAST * 100,
    json_output: Json = False,
) -> None:
    """Train once, kill a task every few minutes, and report where the time went."""
    problems, times = Problems(), {"--for": 1.0, "--kill-every": 1.0}
    for name, text in (("--for", for_), ("--kill-every", kill_every)):
        with problems.collect():
            times[name] = seconds(name, text)
    entry, settings = command.settings(problems)
    disturbance = Disturbance(
        for_s=times["--for"], kill_every_s=times["--kill-every"], at_least=at_least / 100, seed=seed
    )
    with problems.closing():
        plan = prepare_goodput(entry, settings, command.target, os.environ, disturbance)
    _report(lambda: execute_goodput(plan, disturbance, SystemClock()), json_output=json_output)


def _report(execute: Callable[[], _Report], *, json_output: bool) -> None:
    """Print the report of a drill, and exit with its code."""
    try:
        with logs.heard(say, "drill"):
            report = execute()
    except KeyboardInterrupt:
        say("podlift: the drill was interrupted and its run cancelled.")
        if json_output:
            as_json(refusal(("interrupted",), EXIT_CANCELLED))
        raise typer.Exit(EXIT_CANCELLED) from None
    if json_output:
        as_json(report.to_data())
    else:
        answer(str(report))
    raise typer.Exit(report.exit_code)
