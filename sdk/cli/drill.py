"""The verb that tests recovery from kills: drill."""

from __future__ import annotations

import os

import typer

from .. import logs
from ..clock import SystemClock
from ..drill import KILLS, execute, prepare
from ..errors import Problems
from ..spec.plan import Plan
from ..status import EXIT_CANCELLED
from .options import CommandLine, with_settings
from .output import answer, as_json, refusal, say
from .parameters import Json, Kill, Name, Root, Seed, Words


@with_settings(root=Root, name=Name, words=Words)
def drill(command: CommandLine, kill: Kill = None, seed: Seed = 1, json_output: Json = False) -> None:
    """Train with and without kills, and compare the weights.

    Two trainings are undisturbed; in the third one, tasks are killed. The weights are compared bit by bit.
    """
    kills = tuple(kill or KILLS)
    plan = _prepared(command, kills, seed)
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


def _prepared(command: CommandLine, kills: tuple[str, ...], seed: int) -> Plan:
    problems = Problems()
    entry, given = command.settings(problems)
    with problems.closing():
        return prepare(entry, given, command.target, os.environ, kills=kills, seed=seed)
