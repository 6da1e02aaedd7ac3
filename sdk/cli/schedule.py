"""The verbs of schedules: `podlift schedule VERB`."""

from __future__ import annotations

import os
import shlex
import signal
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import typer

from ..clock import SystemClock
from ..errors import InputError, PodliftError, Problems, nearest
from ..job import plan_text
from ..packaging.project import parse_toml
from ..planning.roots import elsewhere, resolve_root
from ..planning.settings import table as settings
from ..planning.settings.merge import Destination
from ..schedules import clock_changes, creation, handle, simulation
from ..schedules.handle import Schedule
from ..schedules.records import SKIPPED, TAKEN, WAITING, Book, ScheduleSpec
from ..schedules.runs import KeptRuns
from ..schedules.server import Server
from ..status import EXIT_DONE, EXIT_INFRASTRUCTURE, EXIT_USER, State
from ..storage.paths import usable
from ..sweeps.serving import Drivers
from ..text import joined
from . import parameters as p
from . import schedule_text
from .help import VerbHelp, group
from .options import CommandLine, with_settings
from .output import answer, as_json, relayed, say, seconds
from .schedule_simulation import new_simulation, remark, span, time_of
from .screen import table

_OWN = (
    "cron", "time_zone", "overlap", "missed", "when", "notify", "notify_skips", "pause_after_failures",
    "max_cost_usd_per_month", "trigger", "location",
)  # fmt: skip

schedule = group("schedule", help="Start a program at the slots of a cron expression.")


@schedule.command(cls=VerbHelp)
@with_settings(backend=p.Backend, root=p.Root, online=p.Online, words=p.NamedWords)
def create(
    command: CommandLine,
    cron: p.Cron = None,
    time_zone: p.TimeZone = None,
    overlap: p.Overlap = None,
    missed: p.Missed = None,
    when: p.When = None,
    notify: p.Notify = None,
    notify_skips: p.NotifySkips = None,
    pause_after_failures: p.PauseAfter = None,
    max_cost_usd_per_month: p.MaxMonth = None,
    trigger: p.TriggerChoice = None,
    location: p.Location = None,
    file: p.SchedulesFile = None,
    dry_run: p.DryRun = False,
    json_output: p.Json = False,
) -> None:
    """Create a schedule, or change the one of that name.

    The code is packaged now, and each slot starts a run of its own. Nothing is written if nothing differs. In a file,
    each table is a schedule: its entry, its cron expression, and any setting; schedules that it does not name stay as they are.
    """
    own = {name: value for name, value in locals().items() if name in _OWN and value is not None}
    prepared_schedules = [_from_options(command, own)] if file is None else _from_file(file, command, own)
    if dry_run:
        schedule_text.show_prepared(prepared_schedules, json_output=json_output, online=bool(command.target.online))
        return
    schedule_text.say_created([creation.create(prepared) for prepared in prepared_schedules], json_output=json_output)


def _from_options(command: CommandLine, own: dict[str, Any]) -> creation.Prepared:
    problems = Problems()
    name, *words = command.words or [""]
    command.words[:] = words
    if not name:
        problems.add("Name the schedule: podlift schedule create NAME ENTRY --cron CRON.")
    if "cron" not in own:
        problems.add("--cron is missing. Example: --cron '0 3 * * 1' --time-zone Europe/Berlin.")
    spec = ScheduleSpec(name="any", cron="* * * * *")
    with problems.collect():
        spec = creation.draft(**{"name": name or "any", "cron": "* * * * *", **own})
    entry, flat_settings = command.settings(problems)
    with problems.closing():
        return creation.prepare(spec, entry, flat_settings, command.target)


def _from_file(file: Path, command: CommandLine, own: dict[str, Any]) -> list[creation.Prepared]:
    problems, prepared_schedules = Problems(), list[creation.Prepared]()
    if command.words_and_options or command.target.backend or own:
        raise InputError(
            f"--file cannot be combined with a name or with settings, which stand in its tables. Received: {str(file)!r}. "
            "Next: podlift schedule create --file FILE, with --root, --online, --dry-run or --json."
        )
    with usable("The file", file):
        tables = parse_toml(file.read_bytes(), str(file))
    if not tables:
        raise InputError(f"The file has no table, such as [weekly] with entry and cron. Received: {str(file)!r}.")
    folder = Path.cwd()
    os.chdir(file.resolve().parent)
    try:
        for name, entries in tables.items():
            with problems.collect():
                prepared_schedules.append(_from_table(name, entries, command.target))
    finally:
        os.chdir(folder)
    problems.raise_if_any()
    return prepared_schedules


def _from_table(name: str, entries: object, target: Destination) -> creation.Prepared:
    if not isinstance(entries, dict):
        raise InputError(f"{name}: expected a table with entry and cron. Received: {entries!r}.")
    values = {key.replace("-", "_"): value for key, value in entries.items()}
    keys = [*_OWN, *settings.settings(), "backend", "root"]
    problems = Problems()
    problems.messages += [f"{name}: unknown key {key!r}. {nearest(key, keys)}" for key in values if key not in keys]
    problems.messages += [f"{name}: {key} is missing." for key in ("entry", "cron") if key not in values]
    problems.raise_if_any()
    own = {key: values.pop(key) for key in _OWN if key in values}
    lists = {
        key: tuple(value) if isinstance(value, list) else (value,)
        for key, value in own.items()
        if key in ("when", "notify")
    }
    root = values.pop("root", None)
    target = replace(target, backend=values.pop("backend", None), root=target.root or root)
    try:
        return creation.prepare(creation.draft(name=name, **{**own, **lists}), values.pop("entry"), values, target)
    except InputError as error:
        raise InputError([f"{name}: {problem}" for problem in error.problems]) from None


@schedule.command("list", cls=VerbHelp)
def list_schedules(
    names: p.ScheduleNames = None, check: p.Check = False, root: p.Root = None, json_output: p.Json = False
) -> None:
    """List the schedules with their state, the next slot and the last one.

    The column "trigger" compares the records with a cloud's scheduler: in sync, changed there, missing, or orphan.
    """
    listing = handle.listed(root, names=names or ())
    schedules = [schedule_text.facts_of(one) for one in listing.schedules]
    schedules += [schedule_text.facts_of_orphan(trigger) for trigger in listing.orphans]
    for problem in listing.problems:
        say(f"podlift: {problem}")
    if json_output:
        as_json(schedules)
    elif check:
        for problem in schedule_text.problems_of(schedules):
            answer(problem)
    else:
        header = ("schedule", "cron", "time zone", "state", "trigger", "next", "last")
        table(header, [schedule_text.row(facts) for facts in schedules], whole=("schedule", "cron"), under=True)
        for problem in schedule_text.problems_of(schedules):
            say(f"podlift: {problem}")
    if not schedules:
        step = elsewhere("schedule", listing.roots) or "Next: podlift schedule create NAME ENTRY --cron CRON"
        say(f"There are no schedules below {joined(listing.roots, 'and')}. {step}")
    if check:
        failing = not schedules or bool(schedule_text.problems_of(schedules))
        raise typer.Exit(EXIT_USER if failing else EXIT_INFRASTRUCTURE if listing.problems else EXIT_DONE)


@schedule.command(cls=VerbHelp)
def status(name: p.ScheduleName, limit: p.PastSlots = 5, root: p.Root = None, json_output: p.Json = False) -> None:
    """Show a schedule: its job, its rules, the next five slots, and the outcomes of past slots, newest first."""
    named = Schedule(name, root=root)
    facts, past = schedule_text.facts_of(named), named.history(limit)
    if json_output:
        as_json({**facts, "slots": [schedule_text.line(slot) for slot in past]})
        return
    spec = named.record.spec
    why = f" ({facts['paused']})" if facts["paused"] else ""
    lines = [("schedule", name), ("state", f"{facts['state']}{why}")]
    trigger_state = named.trigger()
    if trigger_state is not None:
        trigger = trigger_state.trigger
        last = schedule_text.time_of(trigger.last_attempt) if trigger and trigger.last_attempt else "not yet"
        why = f": {trigger.status}" if trigger and trigger.status else ""
        lines.append(("service", f"{trigger_state.service}: {trigger_state.sync}; delivered {last}{why}"))
    lines += [("problem", text) for text in named.problems()]
    lines += [("cron", f"{spec.cron} in {spec.time_zone}"), ("overlap", spec.overlap), ("missed", spec.missed)]
    lines += [("when", text) for text in spec.when] + [("notify", text) for text in spec.notify]
    lines += [("fires", slot.isoformat()) for slot in named.next(5)]
    answer(plan_text.text(lines))
    answer(schedule_text.plan_of(named.plan, named.trigger_lines()))
    if past:
        rows = [schedule_text.row_of_slot(slot) for slot in past]
        table(("slot", "state", "took", "run", "cause", "reason"), rows, whole=("slot", "run"), under=True)
    else:
        say(f"No slot has come yet. Next: podlift schedule run {name}, which starts a run now")


@schedule.command(cls=VerbHelp)
def pause(name: p.ScheduleName, root: p.Root = None) -> None:
    """Stop firing; a run that goes on continues."""
    Schedule(name, root=root).pause()
    say(f"{name}: paused. Next: podlift schedule unpause {name}")


@schedule.command(cls=VerbHelp)
def unpause(name: p.ScheduleName, root: p.Root = None) -> None:
    """Fire again, from the next slot on."""
    named = Schedule(name, root=root)
    named.unpause()
    say(f"{name}: fires next at {named.next(1)[0].isoformat()}")


@schedule.command(cls=VerbHelp)
def run(
    name: p.ScheduleName,
    due: p.Due = False,
    slot: p.DueSlot = None,
    within: p.Within = None,
    id: p.DeliveryId = None,
    detach: p.DueDetach = False,
    root: p.Root = None,
    json_output: p.Json = False,
) -> None:
    """Start one run more now; with --due, the run of the slot that is due.

    Overlap and preconditions hold as for a slot. --due is for crons that run a command: it follows the run, and exits with 0 if
    the run succeeds. It also exits with 0 if another delivery has the slot, the slot is skipped, or no slot is due.
    """
    named = Schedule(name, root=root)
    if due:
        _run_due(named, slot, within, id or "", detach=detach, json_output=json_output)
    options = {"--slot": slot, "--within": within, "--id": id, "--detach": detach}
    if slot_options := [option for option, value in options.items() if value]:
        raise InputError(
            f"Only a slot that is due has {joined(slot_options, 'and')}. Next: podlift schedule run {name} --due."
        )
    record = named.run()
    if json_output:
        as_json(schedule_text.line(record))
    elif record.state == SKIPPED or record.state == State.FAILED.value:
        say(f"{name}: {record.state}: {record.reason}")
    elif record.state == WAITING:
        say(f"{name}: {record.reason}. Next: podlift schedule serve, which starts it then")
    elif record.state == TAKEN:
        answer(record.keeper)
        say(f"{name}: {record.reason}. Next: podlift schedule status {name}")
    else:
        answer(f"{record.run}")
        say(f"{name}: {record.state}. Next: podlift wait {record.run}")
    raise typer.Exit(EXIT_USER if record.state == State.FAILED.value else EXIT_DONE)


def _run_due(
    named: Schedule, slot: str | None, within: str | None, id: str, *, detach: bool, json_output: bool
) -> NoReturn:
    """Deliver the slot that is due, follow its run, and exit as it does."""
    problems, wanted_slot, within_s = Problems(), None, None
    with problems.collect():
        wanted_slot = simulation.instant("--slot", slot, named.record.spec.slots.zone) if slot else None
    with problems.collect():
        within_s = seconds("--within", within) if within else None
    problems.raise_if_any()
    with relayed("schedules"):
        delivered = named.run_due(slot=wanted_slot, within_s=within_s, id=id, detach=detach)
    if json_output:
        about = schedule_text.line(delivered.record) if delivered.record else {}
        as_json({**about, "text": delivered.text, "exit_code": delivered.exit_code})
    else:
        say(f"{named.name}: {delivered.text}")
    raise typer.Exit(delivered.exit_code)


@schedule.command(cls=VerbHelp)
def remove(name: p.ScheduleName, root: p.Root = None) -> None:
    """Remove a schedule and its history; its runs stay."""
    try:
        removed = Schedule(name, root=root)
    except InputError:
        # A trigger may outlive the records of its schedule.
        if not handle.remove_orphan(name, root):
            raise
    else:
        removed.remove()
    say(f"{name}: removed. Its runs stay. Next: podlift list --name '{name}-*'")


@schedule.command(cls=VerbHelp)
def serve(root: p.Root = None, once: p.Once = False) -> None:
    """Start the slots that are due, until Ctrl-C.

    Several servers of one root are harmless: each slot starts one run. Runs continue when the server ends. It also drives the
    sweeps on a cloud that no client drives.
    """
    folder = resolve_root(root, os.environ)
    clock = SystemClock()
    server = Server(folder, clock, KeptRuns(clock), sweeps=Drivers(folder, clock))
    with relayed("schedules"), relayed("sweeps"):
        if once:
            server.serve_once()
            return
        book = Book(folder)
        names = list[str]()
        for name in book.names():
            with suppress(PodliftError):  # the server names a damaged one, and serves the others
                names += [] if book.read(name).trigger else [name]
        what = joined(names, "and") if names else "no schedules yet"
        say(f"Serving {what} below {folder}. Ctrl-C ends the server, not its runs.")
        # As after Ctrl-C, its heartbeat says that it has ended.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        with suppress(KeyboardInterrupt):
            server.serve()
        again = f" --root {shlex.quote(root)}" if root else ""
        say(f"The server has ended; its runs continue. Next: podlift schedule serve{again}")


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

    Options replace the rules of a named schedule; its runs take as long as its last ones did. Dates without an offset are
    in the time zone of the schedule.
    """
    lengths = durations or []
    if name is not None:
        named = Schedule(name, root=root)
        spec = named.record.spec
        cron, time_zone = cron or spec.cron, time_zone or spec.time_zone
        overlap, missed = overlap or spec.overlap, missed or spec.missed
        past = [
            (record.ended or 0) - (record.started or 0)
            for record in named.history(50)
            if record.state == State.SUCCEEDED.value
        ]
        lengths = lengths or [f"{sorted(past)[len(past) // 2]:.0f}s"] if past else lengths
    simulated = new_simulation(cron, time_zone, overlap, missed, lengths, down or [])
    start, stop = span(simulated.cron, first, end)
    slots = simulated.run(start, stop)
    if json_output:
        as_json([slot.as_data() for slot in slots])
        return
    rows = [
        (
            slot.slot.isoformat(),
            slot.action,
            time_of(slot.starts, slot.slot),
            time_of(slot.ends, slot.slot),
            remark(slot),
        )
        for slot in slots
    ]
    table(("slot", "action", "starts", "ends", "remark"), rows, whole=("slot",))
    for sentence in clock_changes.warnings(simulated.cron, start):
        say(f"podlift: {sentence}")
    counts = Counter(slot.action for slot in slots)
    overlaps = sum(slot.overlaps is not None for slot in slots)
    say(f"{len(slots)} slots: {counts['fire']} fire, {counts['skip']} are skipped, {overlaps} find an earlier run.")
