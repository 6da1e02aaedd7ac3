"""The verb that restarts a run: resume."""

from __future__ import annotations

from typing import Literal, cast

from .. import api
from ..status import continuation
from .output import relayed, say, seconds
from .parameters import Code, Detach, Json, NewMaxCost, NewTimeout, Ref, Root
from .start import accompany


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
    with relayed("backends"):
        chosen = cast("Literal['same', 'current']", code)
        difference = run.resume(chosen, timeout_s=timeout_s, max_cost_usd=max_cost_usd)
    if code == "current":
        say(f"code: {difference}")
    shows = run.metric_records() and not (detach or json_output)
    say("before:" if shows else continuation(before.attempts + 1, before.saved_step))
    accompany(run, "resumed", detach=detach, json_output=json_output)
