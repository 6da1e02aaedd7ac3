"""The verb that tests recovery from kills: drill."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer

from .. import logs
from ..clock import SystemClock
from ..drill import KILLS, execute, prepare
from ..errors import Problems
from ..planning.settings.merge import Target
from ..spec.plan import Plan
from ..status import EXIT_CANCELLED
from .options import with_settings
from .output import answer, as_json, refusal, say
from .start import CommandLine, Env, Inputs, Json, Name, Root

Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="ENTRY [-- ARGS]",
        help="train.py, train.ipynb, a folder, package.module or package.module:function; then its arguments.",
        show_default=False,
    ),
]
Kill = Annotated[
    list[str] | None,
    typer.Option(
        "--kill",
        metavar="TASK@POINT:N",
        help="Task to kill at step, epoch, save or validation N: worker-0@step:50; random:3 for 3 random steps. Repeatable.",
        show_default=False,
    ),
]
Seed = Annotated[int, typer.Option("--seed", metavar="N", help="Random seed of the training and of random kills.")]


@with_settings
def drill(
    words: Words = None,
    root: Root = None,
    name: Name = None,
    env: Env = None,
    inputs: Inputs = None,
    kill: Kill = None,
    seed: Seed = 1,
    json_output: Json = False,
    given: dict[str, Any] | None = None,
) -> None:
    """Train with and without kills, and compare the weights.

    Two trainings are undisturbed; in the third one, tasks are killed. The weights are compared bit by bit.
    """
    target = Target(root=root, name=name)
    kills = tuple(kill or KILLS)
    plan = _prepared(CommandLine(words or [], env or [], inputs or [], given or {}, target), kills, seed)
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
    plan = None
    with problems.collect():
        plan = prepare(entry, given, command.target, os.environ, kills=kills, seed=seed)
    problems.raise_if_any()
    if plan is None:
        raise AssertionError("a check failed without a problem")
    return plan
