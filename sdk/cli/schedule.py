"""The verbs of schedules: schedule simulate."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta, timezone

import typer

from ..clock import SystemClock
from ..errors import InputError, Problems
from ..schedules import clock_changes, policy, simulation
from ..schedules.slots import Cron
from . import parameters as p
from .help import GroupHelp, VerbHelp
from .output import as_json, say, seconds, table

schedule = typer.Typer(
    name="schedule",
    cls=GroupHelp,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Start a program at the slots of a cron expression.",
)


@schedule.command(cls=VerbHelp)
def simulate(
    cron: p.Cron = None,
    time_zone: p.TimeZone = None,
    overlap: p.Overlap = None,
    missed: p.Missed = None,
    duration: p.Durations = None,
    down: p.Down = None,
    first: p.From = None,
    end: p.To = None,
    json_output: p.Json = False,
) -> None:
    """Show what would fire, be skipped and overlap, without running anything.

    Dates without an offset are in the time zone of the schedule.
    """
    found = _simulation(cron, time_zone, overlap, missed, duration or [], down or [])
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
