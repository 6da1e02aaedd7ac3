"""The verb that compares two plans: diff."""

from __future__ import annotations

from pathlib import Path

import typer

from .. import api, backends
from ..job.plan import Plan
from ..planning import diff as difference
from ..status import EXIT_DONE, EXIT_USER
from ..storage.paths import usable
from .output import answer, as_json
from .parameters import Json, OtherPlan, PlanOrRun, Root


def diff(a: PlanOrRun, b: OtherPlan, root: Root = None, json_output: Json = False) -> None:
    """Show the differences between two plans, or the plans of two runs.

    Exit codes are those of diff: 0 for no difference, 1 for differences, 2 if one of the two cannot be read.
    """
    plans = (_plan(a, root), _plan(b, root))
    named = [difference.anonymous(plan) for plan in plans]
    bodies = [backends.load(plan.backend).render(plan).body for plan in named]
    changes = difference.compare(*plans, (bodies[0], bodies[1]))
    if json_output:
        as_json(difference.as_json(changes))
    elif changes:
        answer("\n".join(f"{change.section:<12} {change}" for change in changes))
    raise typer.Exit(EXIT_USER if changes else EXIT_DONE)


def _plan(text: str, root: str | None) -> Plan:
    if text.endswith(".json"):
        with usable("The plan", text):
            return Plan.from_json(Path(text).read_bytes(), text)
    return api.attach(text, root=root).plan
