"""The verb that checks a program for a TPU before anything is paid for: preflight."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from ..errors import InputError, Problems
from ..planning.settings.merge import Target
from ..status import EXIT_DONE, EXIT_INFRASTRUCTURE, EXIT_INPUT, EXIT_USER
from .options import earlier, with_settings
from .output import answer, as_json, seconds
from .start import CommandLine, Env, Inputs, Json

Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="ENTRY [-- ARGS]",
        help="train.py, train.ipynb, a folder, package.module or package.module:function; then its arguments.",
        show_default=False,
    ),
]
Strict = Annotated[bool, typer.Option("--strict", help="Refuse dynamic shapes, which the compiler pads.")]
Limit = Annotated[str, typer.Option("--time-limit", metavar="DURATION", help="Time limit of the preflight itself.")]
Memory = Annotated[
    float, typer.Option("--memory-limit-gb", metavar="GB", help="Memory limit of the preflight itself.", min=0.1)
]
Fresh = Annotated[bool, typer.Option("--fresh", help="Check again, even if the same code was checked before.")]


_EXIT = {
    "passed": EXIT_DONE,
    "refused": EXIT_USER,
    "failed": EXIT_USER,
    "no step": EXIT_INPUT,
    "unfinished": EXIT_INFRASTRUCTURE,
}


@earlier(limit_s="--time-limit", limit_gb="--memory-limit-gb")
@with_settings
def preflight(
    words: Words = None,
    strict: Strict = False,
    time_limit: Limit = "5m",
    memory_limit_gb: Memory = 8.0,
    fresh: Fresh = False,
    env: Env = None,
    inputs: Inputs = None,
    json_output: Json = False,
    given: dict[str, Any] | None = None,
) -> None:
    """Check whether a TPU would run a program, and what costs time there.

    The exit code is 0 only if nothing is refused.
    """
    from ..preflight import PreflightLimits, describe
    from ..preflight import preflight as look

    problems = Problems()
    command = CommandLine(words or [], env or [], inputs or [], given or {}, Target())
    entry, settings = command.settings(problems)
    accelerator = settings.pop("accelerator", None)
    with problems.collect():
        if accelerator is None:
            raise InputError("A preflight needs a TPU. Next: --accelerator v5e-8.")
    limit_s = 0.0
    with problems.collect():
        limit_s = seconds("--time-limit", time_limit)
        if limit_s < 1:
            raise InputError(f"--time-limit must be at least 1s. Received: {time_limit!r}.")
    problems.raise_if_any()
    limits = PreflightLimits(seconds=limit_s, bytes=int(memory_limit_gb * 1e9))
    report = look(entry, accelerator=accelerator, given=settings, strict=strict, limits=limits, fresh=fresh)
    if json_output:
        as_json(json.loads(report.to_json()))
    else:
        answer(describe(report))
    raise typer.Exit(_EXIT[report.outcome])
