"""The verb that checks a program for a TPU before anything is paid for: preflight."""

from __future__ import annotations

import json

import typer

from ..errors import InputError, Problems
from ..status import EXIT_DONE, EXIT_INFRASTRUCTURE, EXIT_INPUT, EXIT_USER
from .options import CommandLine, with_settings
from .output import answer, as_json, seconds
from .parameters import Fresh, Json, MemoryLimit, Strict, TimeLimit, Words

_EXIT = {
    "passed": EXIT_DONE,
    "refused": EXIT_USER,
    "failed": EXIT_USER,
    "no step": EXIT_INPUT,
    "unfinished": EXIT_INFRASTRUCTURE,
}


@with_settings(words=Words)
def preflight(
    command: CommandLine,
    strict: Strict = False,
    time_limit: TimeLimit = "5m",
    memory_limit_gb: MemoryLimit = 8.0,
    fresh: Fresh = False,
    json_output: Json = False,
) -> None:
    """Check whether a TPU would run a program, and where it would lose time.

    The exit code is 0 only if nothing is refused.
    """
    from ..preflight import PreflightLimits, describe
    from ..preflight import preflight as look

    problems = Problems()
    entry, settings = command.settings(problems)
    accelerator = settings.pop("accelerator", None)
    with problems.collect():
        if accelerator is None:
            raise InputError(
                "Which TPU should the program be checked for? Add --accelerator v5e-8. (No TPU is needed.)"
            )
    limit_s = 0.0
    with problems.collect():
        limit_s = seconds("--time-limit", time_limit)
        if limit_s < 1:
            raise InputError(f"--time-limit must be at least 1s. Received: {time_limit!r}.")
    problems.raise_if_any()
    limits = PreflightLimits(seconds=limit_s, bytes=int(memory_limit_gb * 1e9))
    report = look(entry, accelerator=str(accelerator), given=settings, strict=strict, limits=limits, fresh=fresh)
    if json_output:
        as_json(json.loads(report.to_json()))
    else:
        answer(describe(report))
    raise typer.Exit(_EXIT[report.outcome])
