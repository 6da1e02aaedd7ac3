"""The verb that compares two plans, or two versions of a model: diff."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import cast

import typer

from .. import api, backends
from ..errors import InputError
from ..job.plan import Plan
from ..model_registry.models import ModelVersion, VersionDiff
from ..planning import diff as difference
from ..status import EXIT_DONE, EXIT_USER
from ..storage.paths import usable
from ..text import clipped
from .output import answer, as_json, say
from .parameters import Compared, Json, OtherCompared, Root


def diff(a: Compared, b: OtherCompared, root: Root = None, json_output: Json = False) -> None:
    """Show the differences between two plans, the plans of two runs, or two versions of a model.

    Exit codes are as for diff: 0 for no difference, 1 for differences, 2 if one of the two cannot be read.
    """
    versions = [api.models(root).version(ref) for ref in (a, b)]
    if all(versions):
        before, after = cast("list[ModelVersion]", versions)
        differs = _diff_versions(before, after, json_output=json_output)
    elif any(versions):
        raise InputError(f"A version of a model is compared with another version of it. Received: {a!r} and {b!r}.")
    else:
        differs = _diff_plans(_plan(a, root), _plan(b, root), json_output=json_output)
    raise typer.Exit(EXIT_USER if differs else EXIT_DONE)


def _diff_plans(before: Plan, after: Plan, *, json_output: bool) -> bool:
    named = [difference.anonymous(plan) for plan in (before, after)]
    bodies = [backends.load(plan.backend).render(plan).body for plan in named]
    changes = difference.compare(before, after, (bodies[0], bodies[1]))
    if json_output:
        as_json(difference.as_json(changes))
    elif changes:
        answer("\n".join(f"{change.section:<12} {change}" for change in changes))
    return bool(changes)


def _plan(text: str, root: str | None) -> Plan:
    if text.endswith(".json"):
        with usable("The plan", text):
            if not Path(text).exists():
                raise InputError(f"There is no file {text}, and no run of that name.")
            return Plan.from_json(Path(text).read_bytes(), text)
    return api.attach(text, root=root).plan


def _diff_versions(before: ModelVersion, after: ModelVersion, *, json_output: bool) -> bool:
    names = [version.model.name for version in (before, after)]
    if names[0] != names[1]:
        raise InputError(f"Only versions of one model are compared. Received: {names[0]!r} and {names[1]!r}.")
    changes = before.model.diff(before.number, after.number)
    if changes.damage:
        say(changes.damage)
    if json_output:
        as_json({**asdict(changes), "same": not changes.differs})
    elif before.number == after.number:
        others = [each for each in before.model.numbers() if each != before.number]
        following = f" Next: podlift diff {names[0]}:{others[-1]} {names[0]}:{before.number}" if others else ""
        say(f"Both are version {before.number} of {names[0]!r}.{following}")
    else:
        answer("\n".join(_differences(changes)))
        if changes.runs[0] != changes.runs[1]:
            say(f"Next: podlift diff {changes.runs[0]} {changes.runs[1]}, for their plans and code")
    return changes.differs


def _differences(changes: VersionDiff) -> list[str]:
    lines = [f"{'':<20} {f'version {changes.before}':>14} {f'version {changes.after}':>14}"]
    if changes.measured:
        lines += ["by the gate", *_values(changes.measured), "in training"]
    lines += _values(changes.metrics)
    parts: Mapping[str, bool] = {"code": changes.code, "arguments": changes.args, "data": bool(changes.data)}
    for what, differs in parts.items():
        names = f": {', '.join(changes.data)}" if what == "data" and differs else ""
        lines.append(f"{what:<20} {'different' if differs else 'same'}{names}")
    if changes.warm_start[0] != changes.warm_start[1]:
        lines.append(f"{'warm start':<20} {_began(changes.warm_start[0]):>14} {_began(changes.warm_start[1]):>14}")
    marks = {"+": changes.added, "-": changes.removed, "~": changes.changed}
    lines += [f"{mark} {path}" for mark, paths in marks.items() for path in paths]
    return lines if any(marks.values()) else [*lines, f"{'files':<20} same"]


def _values(metrics: Mapping[str, tuple[float | None, float | None]]) -> list[str]:
    return [f"{clipped(name, 20):<20} {_number(a):>14} {_number(b):>14}" for name, (a, b) in metrics.items()]


def _began(number: int) -> str:
    return f"version {number}" if number else "none"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
