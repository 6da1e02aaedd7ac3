"""How schedules are shown: what `create` will do and has done, a line of the list, and JSON."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from datetime import datetime
from typing import cast

from ..backends.triggers import Trigger
from ..clock import SystemClock
from ..errors import PodliftError
from ..job import plan_text
from ..job.plan import Plan
from ..planning.roots import configured_roots, in_bucket
from ..schedules import creation, handle
from ..schedules.creation import Created, Prepared
from ..schedules.handle import Overview, Schedule
from ..schedules.records import SKIPPED, Book, ScheduleSpec, SlotRecord, utc
from ..schedules.triggered import ORPHAN, TriggerState
from ..text import clipped, counted, duration
from ..ui.model import argument_rows
from ..ui.schedules import STRIP, Firing, ScheduleView
from .output import answer, as_json, say

_SHOWN_CHANGES = 20
# Slots on the page of a schedule.
_PAGE = 100
# The program that a container starts with is part of a request.
_SHOWN_CHARACTERS = 200


def show_prepared(prepared_schedules: Sequence[Prepared], *, json_output: bool, online: bool = False) -> None:
    """Show the records and requests of `create`; `online`, also what it would change below a root in a bucket."""
    if json_output:
        as_json([_prepared(prepared, online=online) for prepared in prepared_schedules])
        return
    for prepared in prepared_schedules:
        outcome, changes = _expected(prepared, online=online)
        lines = [
            ("outcome", outcome),
            *(("change", text) for text in changes),
            *(("fires", slot) for slot in _next(prepared.spec)),
        ]
        if prepared.service is None or prepared.trigger is None:
            answer(plan_of(prepared.plan, lines))
        else:
            request = prepared.service.render(prepared.trigger)
            posted = f"POST {request.url}; a new schedule gets its id, and so its digests, when it is created"
            answer(plan_of(prepared.plan, [*_trigger_lines(prepared), *lines, ("request", posted)]))
            answer(json.dumps(_clipped({"name": request.name, **request.settings}), indent=1))
        for sentence in prepared.warnings:
            say(f"podlift: {sentence}")


def plan_of(plan: Plan, more: Sequence[tuple[str, str]]) -> str:
    """Return the plan of firings, and more lines."""
    return plan_text.text([*plan_text.short(plan), *more])


def _trigger_lines(prepared: Prepared) -> list[tuple[str, str]]:
    return (
        prepared.service.lines(prepared.trigger)
        if prepared.service is not None and prepared.trigger is not None
        else []
    )


def _next(spec: ScheduleSpec) -> list[str]:
    return [slot.isoformat() for slot in spec.slots.next(5, utc(SystemClock().now()))]


def _expected(prepared: Prepared, *, online: bool) -> tuple[str, Sequence[str]]:
    """Return what `create` would do, and the differences."""
    if in_bucket(prepared.plan.root) and not online:
        return "not compared with a schedule of this name: --online does that", ()
    return creation.compare(prepared)


def _prepared(prepared: Prepared, *, online: bool) -> dict[str, object]:
    outcome, changes = _expected(prepared, online=online)
    facts: dict[str, object] = {
        "name": prepared.spec.name,
        "outcome": outcome,
        "changes": list(changes),
        "plan": json.loads(prepared.plan.to_json()),
        "next": _next(prepared.spec),
        "warnings": list(prepared.warnings),
        "trigger": None,
    }
    if prepared.service is not None and prepared.trigger is not None:
        request = prepared.service.render(prepared.trigger)
        about = {"name": request.name, "url": request.url, "request": request.body, "posts": request.settings}
        facts["trigger"] = {**about, "lines": [list(pair) for pair in _trigger_lines(prepared)]}
    return facts


def _clipped(value: object) -> object:
    """Return a JSON value with its long texts cut."""
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
                    "name": done.record.spec.name,
                    "outcome": done.outcome,
                    "changes": list(done.changes),
                    "warnings": list(done.warnings),
                    "bundle": done.record.bundle,
                    "backend": done.record.backend,
                    "trigger": done.record.trigger,
                    "alert": done.alert,
                    "next": _next(done.record.spec),
                }
                for done in created
            ]
        )
        return
    for done in created:
        _say_one(done)
    now, served = SystemClock().now(), dict.fromkeys(done.plan.root for done in created if not done.record.trigger)
    for root in [
        f" --root {root}" if in_bucket(root) else "" for root in served if not Book(root).heartbeat().is_live(now)
    ]:
        say(f"Nothing starts while no server runs. Next: podlift schedule serve{root}")


def _say_one(created: Created) -> None:
    name = created.record.spec.name
    say(f"{name}: {created.outcome}")
    for change in created.changes[:_SHOWN_CHANGES]:
        say(f"  {change}")
    if len(created.changes) > _SHOWN_CHANGES:
        say(f"  and {counted(len(created.changes) - _SHOWN_CHANGES, 'more change')}")
    # The warnings of the first time are not repeated.
    new = created.outcome != "unchanged"
    for sentence in created.warnings if new else ():
        say(f"podlift: {sentence}")
    option = _found_by(created.plan.root)
    if created.record.paused:
        say(f"It is paused ({created.record.paused}). Next: podlift schedule unpause {name}{option}")
    for slot in _next(created.record.spec):
        answer(f"{name}\t{slot}")
    if created.alert and created.outcome == "created":
        say(f"Started by {created.record.trigger}. For a mail when a delivery fails: {created.alert}")
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
        datetime.fromisoformat(coming[0]).isoformat(timespec="minutes") if isinstance(coming, list) and coming else "-",
        f"{last['state']} {last['slot']}" if isinstance(last, dict) else "-",
    )


def _shown_trigger(trigger: Mapping[str, object]) -> str:
    """Return the state of a trigger, with its last error: "in sync, PERMISSION_DENIED"."""
    status = str(trigger["status"]).partition(":")[0]
    words = [str(trigger["sync"]), status, "overdue" if trigger.get("overdue") else ""]
    return ", ".join(filter(None, words))


def problems_of(schedules: Sequence[Mapping[str, object]]) -> list[str]:
    """Return a sentence for each reason why schedules need attention, with the name of the schedule."""
    return [f"{facts['name']}: {problem}" for facts in schedules for problem in cast("list[str]", facts["problems"])]


def facts_of(schedule: Schedule, overview: Overview | None = None) -> dict[str, object]:
    overview = overview or handle.overview(schedule)
    record, problems, state = overview.record, overview.problems, overview.trigger_state
    paused = record.paused or ("at the service" if state and state.trigger and state.trigger.paused else "")
    return {
        "name": schedule.name,
        "root": schedule.root,
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
        "trigger": None if state is None else _trigger(record.trigger, state, overdue=bool(overview.overdue)),
        "next": [slot.isoformat() for slot in overview.coming],
        "last": line(overview.past[0]) if overview.past else None,
    }


def _trigger(name: str, state: TriggerState, *, overdue: bool) -> dict[str, object]:
    trigger = state.trigger
    return {
        "name": name,
        "service": state.service,
        "sync": state.sync,
        "why": state.why,
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


def line(slot: SlotRecord) -> dict[str, object]:
    """Return a record of a slot for JSON."""
    names = (
        "slot", "state", "reason", "cause", "run", "started", "ended", "count", "cost_usd", "notes", "registered",
    )  # fmt: skip
    return {key: value for key, value in asdict(slot).items() if key in names}


def row_of_slot(slot: SlotRecord) -> tuple[str, ...]:
    """Return a line of the history."""
    model = "" if slot.registered is None else slot.registered.line
    remark = "; ".join(text for text in (slot.reason, model, *slot.notes) if text)
    return slot.slot, slot.state, took(slot), slot.run or "-", slot.cause, remark


def view_of(schedule: Schedule, *, whole: bool = False) -> ScheduleView:
    """Return a schedule for the page: a row of its list, or the whole."""
    most = _PAGE if whole else STRIP
    overview = handle.overview(schedule, most)
    record, slots, facts = overview.record, overview.past[:most], facts_of(schedule, overview)
    limit_usd, spent_usd = record.spec.max_cost_usd_per_month, None
    # The page names the pause beside the state.
    problems = [text for text in overview.problems if not text.startswith("it is paused")]
    # Without a price or a limit, the records of a month are not read.
    if limit_usd or record.trigger or any(slot.cost_usd is not None for slot in slots):
        try:
            spent_usd = schedule.spent_usd()
        except PodliftError as error:
            problems.append(f"the cost of this month is unknown: {error}")
    view = ScheduleView(
        name=schedule.name,
        cron=record.spec.cron,
        time_zone=record.spec.time_zone,
        state=str(facts["state"]),
        backend=record.backend,
        paused=str(facts["paused"]),
        problems=problems,
        coming=[slot.timestamp() for slot in overview.coming],
        firings=[_firing(slot) for slot in slots],
        spent_usd=spent_usd,
        month_usd=limit_usd,
    )
    if not whole:
        return view
    spec, plan = record.spec, schedule.plan
    rules = [("overlap", spec.overlap), ("missed", spec.missed), *(("when", text) for text in spec.when)]
    rules += [("notify", text) for text in spec.notify] + schedule.trigger_lines()
    return replace(view, program=plan.job.entry, arguments=argument_rows(plan), rules=rules)


def _firing(slot: SlotRecord) -> Firing:
    return Firing(
        time=slot.moment.timestamp(),
        state=slot.state,
        reason="; ".join(filter(None, (slot.reason, *slot.notes))),
        cause=slot.cause,
        run="" if slot.state == SKIPPED else slot.run,
        took_s=slot.ended - slot.started if slot.started and slot.ended else None,
        cost_usd=slot.cost_usd,
        registered=slot.registered,
    )


def view_of_orphan(orphan: Trigger) -> ScheduleView:
    """Return a trigger without a schedule for the page."""
    facts = facts_of_orphan(orphan)
    return ScheduleView(
        name=orphan.schedule,
        cron=orphan.cron,
        time_zone=orphan.time_zone,
        state=str(facts["state"]),
        backend="",
        problems=cast("list[str]", facts["problems"]),
    )


def took(slot: SlotRecord) -> str:
    return duration(slot.ended - slot.started) if slot.started and slot.ended else "-"
