"""The verbs of schedules: `podlift schedule VERB`."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timedelta, timezone
from pathlib import Path

import typer

from .. import logs
from ..clock import SystemClock
from ..errors import InputError, Problems, nearest
from ..packaging.paths import usable
from ..packaging.project import parse_toml
from ..planning.roots import resolve_root
from ..planning.settings import table as settings
from ..planning.settings.merge import Destination
from ..schedules import clock_changes, handle, policy, simulation
from ..schedules.handle import Created, Schedule
from ..schedules.records import SKIPPED, WAITING, ScheduleSpec, SlotRecord
from ..schedules.server import Server
from ..schedules.slots import Cron
from ..spec import plan_text
from ..status import EXIT_DONE, EXIT_USER, State
from ..text import counted, duration, joined
from . import parameters as p
from .help import GroupHelp, VerbHelp
from .options import CommandLine, with_settings
from .output import answer, as_json, say, seconds, table

_OWN = ("cron", "time_zone", "overlap", "missed", "when", "notify", "notify_skips", "pause_after_failures")
_SHOWN_CHANGES = 20

schedule = typer.Typer(
    name="schedule",
    cls=GroupHelp,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Start a program at the slots of a cron expression.",
)


@schedule.command(cls=VerbHelp)
@with_settings(backend=p.Backend, root=p.Root, words=p.NamedWords)
def create(
    command: CommandLine,
    cron: p.Cron = None,
    time_zone: p.TimeZone = None,
    overlap: p.Overlap = None,
    missed: p.Missed = None,
    when: p.When = None,
    notify: p.Notify = None,
    notify_skips: p.NotifySkips = 3,
    pause_after_failures: p.PauseAfter = 3,
    dry_run: p.DryRun = False,
    json_output: p.Json = False,
) -> None:
    """Create a schedule, or change the one of that name.

    The code is packaged now, and each slot starts a run of its own. Nothing is written if nothing differs.
    """
    problems = Problems()
    name, *words = command.words or [""]
    command.words[:] = words
    if not name:
        problems.found.append("Name the schedule: podlift schedule create NAME ENTRY --cron CRON.")
    if cron is None:
        problems.found.append("--cron is missing. Example: --cron '0 3 * * 1' --time-zone Europe/Berlin.")
    spec = ScheduleSpec(name="any", cron="* * * * *")
    with problems.collect():
        spec = handle.draft(
            name=name or "any",
            cron=cron or "* * * * *",
            time_zone=time_zone or "UTC",
            overlap=overlap or "skip",
            missed=missed or "skip",
            when=tuple(when or ()),
            notify=tuple(notify or ()),
            notify_skips=notify_skips,
            pause_after_failures=pause_after_failures,
        )
    entry, given = command.settings(problems)
    with problems.closing():
        made = handle.prepare(spec, entry, given, command.target)
    if dry_run:
        _show_plan(made)
        return
    _say_created([handle.create(made)], json_output=json_output)


@schedule.command(cls=VerbHelp)
def apply(file: p.SchedulesFile, root: p.Root = None, dry_run: p.DryRun = False, json_output: p.Json = False) -> None:
    """Create or change the schedules of a file.

    Each table of the TOML file is a schedule: its entry, its cron expression, and any setting. Schedules that the file does not
    name stay as they are.
    """
    problems, made = Problems(), list[handle.Prepared]()
    with usable("The file", file):
        tables = parse_toml(file.read_bytes(), str(file))
    folder = Path.cwd()
    os.chdir(file.resolve().parent)
    try:
        for name, entries in tables.items():
            with problems.collect():
                made.append(_from_table(name, entries, root))
    finally:
        os.chdir(folder)
    problems.raise_if_any()
    if dry_run:
        for each in made:
            _show_plan(each)
        return
    _say_created([handle.create(each) for each in made], json_output=json_output)


def _from_table(name: str, entries: object, root: str | None) -> handle.Prepared:
    if not isinstance(entries, dict):
        raise InputError(f"{name}: expected a table with entry and cron. Received: {entries!r}.")
    given = {key.replace("-", "_"): value for key, value in entries.items()}
    known = [*_OWN, *settings.SETTINGS, "backend", "root"]
    problems = Problems()
    problems.found += [f"{name}: unknown key {key!r}. {nearest(key, known)}" for key in given if key not in known]
    problems.found += [f"{name}: {key} is missing." for key in ("entry", "cron") if key not in given]
    problems.raise_if_any()
    own = {key: given.pop(key) for key in _OWN if key in given}
    lists = {
        key: tuple(value) if isinstance(value, list) else (value,)
        for key, value in own.items()
        if key in ("when", "notify")
    }
    target = Destination(backend=given.pop("backend", None), root=root or given.pop("root", None))
    given.pop("root", None)
    try:
        return handle.prepare(handle.draft(name=name, **{**own, **lists}), given.pop("entry"), given, target)
    except InputError as error:
        raise InputError([f"{name}: {problem}" for problem in error.problems]) from None


def _show_plan(made: handle.Prepared) -> None:
    answer(plan_text.text(plan_text.short(made.plan)))
    now = datetime.fromtimestamp(SystemClock().now(), timezone.utc)
    for slot in made.spec.slots.next(5, now):
        answer(f"fires      {slot.isoformat()}")
    for sentence in made.warnings:
        say(f"podlift: {sentence}")


def _say_created(created: Sequence[Created], *, json_output: bool) -> None:
    now = datetime.fromtimestamp(SystemClock().now(), timezone.utc)
    if json_output:
        as_json(
            [
                {
                    "name": each.record.spec.name,
                    "outcome": each.outcome,
                    "changes": list(each.changes),
                    "warnings": list(each.warnings),
                    "bundle": each.record.bundle,
                    "next": [slot.isoformat() for slot in each.record.spec.slots.next(5, now)],
                }
                for each in created
            ]
        )
        return
    for each in created:
        name = each.record.spec.name
        say(f"{name}: {each.outcome}")
        for change in each.changes[:_SHOWN_CHANGES]:
            say(f"  {change}")
        if len(each.changes) > _SHOWN_CHANGES:
            say(f"  and {counted(len(each.changes) - _SHOWN_CHANGES, 'more change')}")
        for sentence in each.warnings:
            say(f"podlift: {sentence}")
        if each.record.paused:
            say(f"It is paused ({each.record.paused}). Next: podlift schedule resume {name}")
        for slot in each.record.spec.slots.next(5, now):
            answer(f"{name}\t{slot.isoformat()}")
    say("Next: podlift schedule serve")


@schedule.command("list", cls=VerbHelp)
def list_schedules(root: p.Root = None, json_output: p.Json = False) -> None:
    """List the schedules with their state, the next slot and the last one."""
    found = handle.listed(root)
    if json_output:
        as_json([_facts(each) for each in found])
        return
    rows = [_row(each) for each in found]
    table(("schedule", "cron", "time zone", "state", "next", "last"), rows, whole=("schedule", "cron"))
    if not found:
        say("There are no schedules. Next: podlift schedule create NAME ENTRY --cron CRON")


def _row(each: Schedule) -> tuple[str, ...]:
    facts = _facts(each)
    last = facts["last"]
    shown = f"{last['state']} {last['slot']}" if isinstance(last, dict) else "-"
    coming = facts["next"]
    return (
        each.name,
        str(facts["cron"]),
        str(facts["time_zone"]),
        str(facts["state"]),
        str(coming[0]) if isinstance(coming, list) and coming else "-",
        shown,
    )


def _facts(each: Schedule) -> dict[str, object]:
    record, last, problems = each.record, each.history(1), each.problems()
    return {
        "name": each.name,
        "cron": record.spec.cron,
        "time_zone": record.spec.time_zone,
        "backend": "local",
        "state": "paused" if record.paused else "attention" if problems else "active",
        "problems": problems,
        "overlap": record.spec.overlap,
        "missed": record.spec.missed,
        "when": list(record.spec.when),
        "notify": list(record.spec.notify),
        "paused": record.paused,
        "bundle": record.bundle,
        "next": [slot.isoformat() for slot in each.next(5)],
        "last": _line(last[0]) if last else None,
    }


@schedule.command(cls=VerbHelp)
def show(name: p.ScheduleName, root: p.Root = None, json_output: p.Json = False) -> None:
    """Show a schedule: its job, its rules, the next five slots and the last one."""
    each = Schedule(name, root=root)
    facts = _facts(each)
    if json_output:
        as_json(facts)
        return
    spec = each.record.spec
    lines = [
        ("schedule", name),
        ("state", f"{facts['state']}{f' ({each.record.paused})' if each.record.paused else ''}"),
    ]
    lines += [("problem", text) for text in each.problems()]
    lines += [("cron", f"{spec.cron} in {spec.time_zone}"), ("overlap", spec.overlap), ("missed", spec.missed)]
    lines += [("when", text) for text in spec.when] + [("notify", text) for text in spec.notify]
    lines += [("fires", slot.isoformat()) for slot in each.next(5)]
    lines += [("last", f"{last.slot} {last.state} {last.reason}".rstrip()) for last in each.history(1)]
    answer("\n".join(f"{label:<10} {text}" for label, text in lines))
    answer(plan_text.text(plan_text.short(each.plan)))


@schedule.command(cls=VerbHelp)
def history(name: p.ScheduleName, limit: p.Limit = 20, root: p.Root = None, json_output: p.Json = False) -> None:
    """List what became of the slots of a schedule, newest first."""
    found = Schedule(name, root=root).history(limit)
    if json_output:
        as_json([_line(each) for each in found])
        return
    rows = [(each.slot, each.state, _took(each), each.run or "-", each.cause, each.reason) for each in found]
    table(("slot", "state", "took", "run", "cause", "reason"), rows, whole=("slot", "run"))


def _line(each: SlotRecord) -> dict[str, object]:
    names = ("slot", "state", "reason", "cause", "run", "started", "ended", "count")
    return {key: value for key, value in asdict(each).items() if key in names}


def _took(each: SlotRecord) -> str:
    return duration(each.ended - each.started) if each.started and each.ended else "-"


@schedule.command(cls=VerbHelp)
def check(name: p.ScheduleName, root: p.Root = None) -> None:
    """Exit with 1 if a schedule is overdue, failing, or was paused because it failed: for a monitor."""
    problems = Schedule(name, root=root).problems()
    for problem in problems:
        answer(f"{name}: {problem}")
    raise typer.Exit(EXIT_USER if problems else EXIT_DONE)


@schedule.command(cls=VerbHelp)
def pause(name: p.ScheduleName, root: p.Root = None) -> None:
    """Stop firing; a run that goes on continues."""
    Schedule(name, root=root).pause()
    say(f"{name}: paused. Next: podlift schedule resume {name}")


@schedule.command(cls=VerbHelp)
def resume(name: p.ScheduleName, root: p.Root = None) -> None:
    """Fire again, from the next slot on."""
    each = Schedule(name, root=root)
    each.resume()
    say(f"{name}: fires next at {each.next(1)[0].isoformat()}")


@schedule.command(cls=VerbHelp)
def run(name: p.ScheduleName, root: p.Root = None, json_output: p.Json = False) -> None:
    """Fire a schedule now.

    Overlap and preconditions hold as for a slot.
    """
    record = Schedule(name, root=root).run()
    if json_output:
        as_json(_line(record))
    elif record.state == SKIPPED or record.state == State.FAILED.value:
        say(f"{name}: {record.state}: {record.reason}")
    elif record.state == WAITING:
        say(f"{name}: {record.reason}. Next: podlift schedule serve, which starts it then")
    else:
        answer(f"{record.run}")
        say(f"{name}: {record.state}. Next: podlift wait {record.run}")
    raise typer.Exit(EXIT_USER if record.state == State.FAILED.value else EXIT_DONE)


@schedule.command(cls=VerbHelp)
def delete(name: p.ScheduleName, root: p.Root = None) -> None:
    """Remove a schedule and its history; its runs stay."""
    Schedule(name, root=root).delete()
    say(f"{name}: deleted. Its runs stay. Next: podlift runs --name '{name}-*'")


@schedule.command(cls=VerbHelp)
def serve(root: p.Root = None, once: p.Once = False) -> None:
    """Start what is due, until Ctrl-C.

    Several servers of one root are harmless: each slot starts one run. Runs continue when the server ends.
    """
    folder = resolve_root(root, os.environ)
    server = Server(folder, SystemClock())
    with logs.heard(lambda text: say(f"podlift: {text}"), "schedules"):
        if once:
            server.serve_once()
            return
        names = [each.name for each in handle.listed(root)]
        what = joined(names, "and") if names else "no schedules yet"
        say(f"Serving {what} below {folder}. Ctrl-C ends the server, not its runs.")
        server.serve()


@schedule.command(cls=VerbHelp)
def simulate(
    name: p.OptionalScheduleName = None,
    cron: p.Cron = None,
    time_zone: p.TimeZone = None,
    overlap: p.Overlap = None,
    missed: p.Missed = None,
    durations: p.Durations = None,
    down: p.Down = None,
    first: p.From = None,
    end: p.To = None,
    root: p.Root = None,
    json_output: p.Json = False,
) -> None:
    """Show what would fire, be skipped and overlap, without running anything.

    Options replace the rules of a named schedule, whose runs take as long as its last ones did. Dates without an offset are
    in the time zone of the schedule.
    """
    lengths = durations or []
    if name is not None:
        each = Schedule(name, root=root)
        spec = each.record.spec
        cron, time_zone = cron or spec.cron, time_zone or spec.time_zone
        overlap, missed = overlap or spec.overlap, missed or spec.missed
        past = [
            (each.ended or 0) - (each.started or 0) for each in each.history(50) if each.state == State.SUCCEEDED.value
        ]
        lengths = lengths or [f"{sorted(past)[len(past) // 2]:.0f}s"] if past else lengths
    found = _simulation(cron, time_zone, overlap, missed, lengths, down or [])
    start, stop = _span(found.cron, first, end)
    slots = found.run(start, stop)
    if json_output:
        as_json([each.as_data() for each in slots])
        return
    rows = [
        (each.slot.isoformat(), each.action, _time(each.starts, each.slot), _time(each.ends, each.slot), _remark(each))
        for each in slots
    ]
    table(("slot", "action", "starts", "ends", "remark"), rows, whole=("slot",))
    for sentence in clock_changes.warnings(found.cron, start):
        say(f"podlift: {sentence}")
    counts = Counter(each.action for each in slots)
    overlaps = sum(each.overlaps is not None for each in slots)
    say(f"{len(slots)} slots: {counts['fire']} fire, {counts['skip']} are skipped, {overlaps} find an earlier run.")


def _simulation(
    cron: str | None,
    time_zone: str | None,
    overlap: str | None,
    missed: str | None,
    durations: list[str],
    down: list[str],
) -> simulation.Simulation:
    problems = Problems()
    made = Cron("* * * * *")
    with problems.collect():
        if cron is None:
            raise InputError("--cron is missing. Example: --cron '0 3 * * 1' --time-zone Europe/Berlin.")
        made = Cron(cron, time_zone or "UTC")
    with problems.collect():
        policy.check_choice("--overlap", overlap or "skip", policy.OVERLAPS)
    with problems.collect():
        policy.check_choice("--missed", missed or "skip", policy.MISSED)
    lengths, spans = list[float](), list[tuple[datetime, datetime]]()
    for text in durations:
        with problems.collect():
            lengths.append(seconds("--duration", text))
    for text in down:
        with problems.collect():
            spans.append(_down(text, made))
    problems.raise_if_any()
    return simulation.Simulation(
        cron=made, overlap=overlap or "skip", missed=missed or "skip", durations_s=lengths, down=spans
    )


def _down(text: str, cron: Cron) -> tuple[datetime, datetime]:
    first, dots, last = text.partition("..")
    if not dots:
        raise InputError(
            f"--down: two dates with .. between them. Received: {text!r}. Example: 2027-01-01..2027-01-08."
        )
    return simulation.instant("--down", first, cron.zone), simulation.instant("--down", last, cron.zone)


def _span(cron: Cron, first: str | None, end: str | None) -> tuple[datetime, datetime]:
    problems = Problems()
    start = datetime.fromtimestamp(SystemClock().now(), timezone.utc)
    with problems.collect():
        start = simulation.instant("--from", first, cron.zone) if first else start
    stop = start + timedelta(days=365)
    with problems.collect():
        stop = simulation.instant("--to", end, cron.zone) if end else stop
    problems.raise_if_any()
    if stop.astimezone(timezone.utc) <= start.astimezone(timezone.utc):
        raise InputError(f"--to must be after --from. Received: {end!r} and {first or start.isoformat()!r}.")
    return start, stop


def _time(moment: datetime | None, slot: datetime) -> str:
    if moment is None:
        return "-"
    return moment.strftime("%H:%M:%S" if moment.date() == slot.date() else "%Y-%m-%d %H:%M:%S")


def _remark(each: simulation.SimulatedSlot) -> str:
    earlier = f"the run of {each.overlaps.isoformat()} goes on" if each.overlaps else ""
    return ", ".join(filter(None, (each.reason, earlier)))
