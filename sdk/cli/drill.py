"""The verb that tests recovery from kills: drill."""

from __future__ import annotations

import os

import typer

from .. import logs
from ..clock import SystemClock
from ..drill import KILLS, execute, prepare
from ..errors import Problems
from ..status import EXIT_CANCELLED
from .options import CommandLine, with_settings
from .output import answer, as_json, refusal, say
from .parameters import DrillBackend, Json, Kill, Name, Root, Seed, Words


@with_settings(backend=DrillBackend, root=Root, name=Name, words=Words)
def drill(command: CommandLine, kill: Kill = None, seed: Seed = 1, json_output: Json = False) -> None:
    """Train with and without kills, and compare the weights.

    Two trainings are undisturbed; in the third one, tasks are killed, and on an emulated cloud also their machines. The weights
    are compared bit by bit.
    """
    kills, problems = tuple(kill or KILLS), Problems()
    entry, given = command.settings(problems)
    with problems.closing():
        plan = prepare(entry, given, command.target, os.environ, kills=kills, seed=seed)
    try:
        with logs.heard(say, "drill"):
            report = execute(plan, kills, SystemClock())
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
