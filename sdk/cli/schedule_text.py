"""How schedules are shown: what `create` will do and has done, a line of the list, and JSON."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import cast

from ..backends.triggers import Trigger
from ..clock import SystemClock
from ..job import plan_text
from ..job.plan import Plan
from ..planning.roots import configured_roots, in_bucket
from ..schedules import creation
from ..schedules.creation import Created, Prepared
from ..schedules.handle import Schedule
from ..schedules.records import ScheduleSpec, SlotRecord, utc
from ..schedules.triggered import ORPHAN, Seen
from ..text import clipped, counted, duration
from .output import answer, as_json, say

_SHOWN_CHANGES = 20
# The program that a container starts with is part of a request.
_SHOWN_CHARACTERS = 200


def show_prepared(made: Sequence[Prepared], *, json_output: bool, online: bool = False) -> None:
    """Show what `create` would write and send; `online`, also what it would change below a root in a bucket."""
    if json_output:
        as_json([_prepared(each, online=online) for each in made])
        return
    for each in made:
        outcome, changes = _expected(each, online=online)
        lines = [
            ("outcome", outcome),
            *(("change", text) for text in changes),
            *(("fires", slot) for slot in _next(each.spec)),
        ]
        if each.service is None or each.trigger is None:
            answer(plan_of(each.plan, lines))
        else:
            request = each.service.render(each.trigger)
            posted = f"POST {request.url}; a new schedule gets its id, and so its digests, when it is created"
            answer(plan_of(each.plan, [*_trigger_lines(each), *lines, ("request", posted)], served=False))
            answer(json.dumps(_clipped({"name": request.name, **request.settings}), indent=1))
        for sentence in each.warnings:
            say(f"podlift: {sentence}")


def plan_of(plan: Plan, more: Sequence[tuple[str, str]], *, served: bool = True) -> str:
    """Return the plan of firings, and more lines; those that are not `served` are submitted by their own keepers."""
    lines = [pair for pair in plan_text.short(plan) if served or pair[0] != "submitted by"]
    return plan_text.text([*lines, *more])


def _trigger_lines(made: Prepared) -> list[tuple[str, str]]:
    return made.service.lines(made.trigger) if made.service is not None and made.trigger is not None else []


def _next(spec: ScheduleSpec) -> list[str]:
    return [slot.isoformat() for slot in spec.slots.next(5, utc(SystemClock().now()))]


def _expected(made: Prepared, *, online: bool) -> tuple[str, Sequence[str]]:
    """Return what `create` would do, and the differences."""
    if in_bucket(made.plan.root) and not online:
        return "not compared with a schedule of this name: --online does that", ()
    return creation.compare(made)


def _prepared(made: Prepared, *, online: bool) -> dict[str, object]:
    outcome, changes = _expected(made, online=online)
    facts: dict[str, object] = {
        "name": made.spec.name,
        "outcome": outcome,
        "changes": list(changes),
        "plan": json.loads(made.plan.to_json()),
        "next": _next(made.spec),
        "warnings": list(made.warnings),
        "trigger": None,
    }
    if made.service is not None and made.trigger is not None:
        request = made.service.render(made.trigger)
        about = {"name": request.name, "url": request.url, "request": request.body, "posts": request.settings}
        facts["trigger"] = {**about, "lines": [list(pair) for pair in _trigger_lines(made)]}
    return facts


def _clipped(value: object) -> object:
    """Return a JSON value whose long texts are cut."""
    if isinstance(value, str):
        return clipped(value, _SHOWN_CHARACTERS)
    if isinstance(value, dict):
        return {name: _clipped(item) for name, item in value.items()}
    return [_clipped(item) for item in value] if isinstance(value, list) else value


def say_created(created: Sequence[Created], *, json_output: bool) -> None:
    """Say what was created."""
    if json_output:
        as_json(
            [
                {
                    "name": each.record.spec.name,
                    "outcome": each.outcome,
                    "changes": list(each.changes),
                    "warnings": list(each.warnings),
                    "bundle": each.record.bundle,
                    "backend": each.record.backend,
                    "trigger": each.record.trigger,
                    "alert": each.alert,
                    "next": _next(each.record.spec),
                }
                for each in created
            ]
        )
        return
    for each in created:
        _say_one(each)
    served = [each.plan.root for each in created if not each.record.trigger]
    for root in dict.fromkeys(f" --root {root}" if in_bucket(root) else "" for root in served):
        say(f"Next: podlift schedule serve{root}")


def _say_one(each: Created) -> None:
    name = each.record.spec.name
    say(f"{name}: {each.outcome}")
    for change in each.changes[:_SHOWN_CHANGES]:
        say(f"  {change}")
    if len(each.changes) > _SHOWN_CHANGES:
        say(f"  and {counted(len(each.changes) - _SHOWN_CHANGES, 'more change')}")
    # What was said at the first time is not repeated.
    new = each.outcome != "unchanged"
    for sentence in each.warnings if new else ():
        say(f"podlift: {sentence}")
    option = _found_by(each.plan.root)
    if each.record.paused:
        say(f"It is paused ({each.record.paused}). Next: podlift schedule unpause {name}{option}")
    for slot in _next(each.record.spec):
        answer(f"{name}\t{slot}")
    if each.alert and each.outcome == "created":
        say(f"Started by {each.record.trigger}. For a mail when a delivery fails: {each.alert}")
        say(f"For a monitor: podlift schedule list {name} --check{option}")
    if option:
        say(
            f"The settings here do not name its root: other commands need{option}, or run in a project that sets its bucket."
        )


def _found_by(root: str) -> str:
    """Return the option that later commands need to find a root, "" if they search it anyway."""
    return "" if root in configured_roots(os.environ)[0] else f" --root {shlex.quote(root)}"


def row(facts: dict[str, object]) -> tuple[str, ...]:
    """Return a line of the list."""
    last, coming, trigger = facts["last"], facts["next"], facts["trigger"]
    return (
        str(facts["name"]),
        str(facts["cron"]),
        str(facts["time_zone"]),
        str(facts["state"]),
        _shown_trigger(trigger) if isinstance(trigger, dict) else "-",
        str(coming[0]) if isinstance(coming, list) and coming else "-",
        f"{last['state']} {last['slot']}" if isinstance(last, dict) else "-",
    )


def _shown_trigger(trigger: Mapping[str, object]) -> str:
    """Return the state of a trigger, and what went wrong: "in sync, PERMISSION_DENIED"."""
    status = str(trigger["status"]).partition(":")[0]
    words = [str(trigger["sync"]), status, "overdue" if trigger.get("overdue") else ""]
    return ", ".join(filter(None, words))


def problems_of(schedules: Sequence[Mapping[str, object]]) -> list[str]:
    """Return a sentence for each reason why schedules need attention, with the name of the schedule."""
    return [f"{facts['name']}: {problem}" for facts in schedules for problem in cast("list[str]", facts["problems"])]


def facts_of(each: Schedule) -> dict[str, object]:
    record, last, problems, seen = each.record, each.history(1), each.problems(), each.trigger()
    paused = record.paused or ("at the service" if seen and seen.trigger and seen.trigger.paused else "")
    return {
        "name": each.name,
        "root": each.root,
        "cron": record.spec.cron,
        "time_zone": record.spec.time_zone,
        "backend": record.backend,
        "state": "paused" if paused else "attention" if problems else "active",
        "problems": problems,
        "overlap": record.spec.overlap,
        "missed": record.spec.missed,
        "when": list(record.spec.when),
        "notify": list(record.spec.notify),
        "paused": paused,
        "bundle": record.bundle,
        "trigger": None if seen is None else _trigger(record.trigger, seen, overdue=bool(each.overdue())),
        "next": [slot.isoformat() for slot in each.next(5)],
        "last": line(last[0]) if last else None,
    }


def _trigger(name: str, seen: Seen, *, overdue: bool) -> dict[str, object]:
    trigger = seen.trigger
    return {
        "name": name,
        "service": seen.service,
        "sync": seen.sync,
        "why": seen.why,
        "overdue": overdue,
        "last_attempt": time_of(trigger.last_attempt if trigger else None),
        "status": trigger.status if trigger else "",
        "next": time_of(trigger.next if trigger else None),
    }


def time_of(moment: float | None) -> str | None:
    return None if moment is None else utc(moment).isoformat(timespec="seconds")


def facts_of_orphan(orphan: Trigger) -> dict[str, object]:
    """Return a trigger without a schedule in the form of a schedule."""
    problem = (
        f"{orphan.name} starts a schedule whose records are gone from {orphan.root}. Next: podlift schedule remove "
        f"{orphan.schedule}"
    )
    trigger = {"name": orphan.name, "sync": ORPHAN, "status": orphan.status, "next": time_of(orphan.next)}
    return {
        "name": orphan.schedule,
        "root": orphan.root,
        "cron": orphan.cron,
        "time_zone": orphan.time_zone,
        "state": "paused" if orphan.paused else "attention",
        "problems": [problem],
        "trigger": trigger,
        "next": [],
        "last": None,
    }


def line(each: SlotRecord) -> dict[str, object]:
    """Return a record of a slot for JSON."""
    names = (
        "slot", "state", "reason", "cause", "run", "started", "ended", "count", "cost_usd", "notes", "registered",
    )  # fmt: skip
    return {key: value for key, value in asdict(each).items() if key in names}


def row_of_slot(each: SlotRecord) -> tuple[str, ...]:
    """Return a line of the history."""
    model = "" if each.registered is None else each.registered.line
    remark = "; ".join(text for text in (each.reason, model, *each.notes) if text)
    return each.slot, each.state, took(each), each.run or "-", each.cause, remark


def took(each: SlotRecord) -> str:
    return duration(each.ended - each.started) if each.started and each.ended else "-"
