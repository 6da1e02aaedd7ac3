"""The verb that restarts a run: resume."""

from __future__ import annotations

from typing import Literal, cast

import typer

from .. import api, logs
from ..status import EXIT_DONE, continuation
from .output import answer, as_json, say, seconds, summary
from .parameters import Code, Detach, Json, NewMaxCost, NewTimeout, Ref, Root
from .start import reference
from .watch import follow


def resume(
    ref: Ref,
    root: Root = None,
    code: Code = "same",
    timeout: NewTimeout = None,
    max_cost_usd: NewMaxCost = None,
    detach: Detach = False,
    json_output: Json = False,
) -> None:
    """Continue a run that ended without success, from its last checkpoint."""
    timeout_s = None if timeout is None else seconds("--timeout", timeout)
    run = api.attach(ref, root=root)
    before = run.status()
    with logs.heard(lambda text: say(f"podlift: {text}"), "backends"):
        chosen = cast("Literal['same', 'current']", code)
        difference = run.resume(chosen, timeout_s=timeout_s, max_cost_usd=max_cost_usd)
    if code == "current":
        say(f"code: {difference}")
    say(continuation(before.attempts + 1, before.saved_step))
    shown = reference(run)
    if detach:
        say(f"resumed. Next: podlift wait {shown} · podlift logs {shown} -f · podlift cancel {shown}")
        exit_code = EXIT_DONE
    else:
        exit_code = follow(run, shown, quiet=json_output)
    if json_output:
        as_json(summary(run, run.status()))
    elif detach:
        answer(run.url)
    raise typer.Exit(exit_code)
