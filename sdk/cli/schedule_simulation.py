"""What `podlift schedule simulate` is asked for, and how a simulated slot is shown."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from ..clock import SystemClock
from ..errors import InputError, Problems
from ..schedules import policy, simulation
from ..schedules.records import utc
from ..schedules.slots import Cron
from .output import seconds


def new_simulation(
    cron: str | None,
    time_zone: str | None,
    overlap: str | None,
    missed: str | None,
    durations: list[str],
    down: list[str],
) -> simulation.Simulation:
    problems = Problems()
    parsed_cron = Cron("* * * * *")
    with problems.collect():
        if cron is None:
            raise InputError("--cron is missing. Example: --cron '0 3 * * 1' --time-zone Europe/Berlin.")
        parsed_cron = Cron(cron, time_zone or "UTC")
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
            spans.append(_down(text, parsed_cron))
    problems.raise_if_any()
    return simulation.Simulation(
        cron=parsed_cron, overlap=overlap or "skip", missed=missed or "skip", durations_s=lengths, down=spans
    )


def _down(text: str, cron: Cron) -> tuple[datetime, datetime]:
    first, dots, last = text.partition("..")
    if not dots:
        raise InputError(
            f"--down: two dates with .. between them. Received: {text!r}. Example: 2027-01-01..2027-01-08."
        )
    return simulation.instant("--down", first, cron.zone), simulation.instant("--down", last, cron.zone)


def span(cron: Cron, first: str | None, end: str | None) -> tuple[datetime, datetime]:
    problems = Problems()
    start = utc(SystemClock().now())
    with problems.collect():
        start = simulation.instant("--from", first, cron.zone) if first else start
    stop = start + timedelta(days=365)
    with problems.collect():
        stop = simulation.instant("--to", end, cron.zone) if end else stop
    problems.raise_if_any()
    if stop.astimezone(timezone.utc) <= start.astimezone(timezone.utc):
        raise InputError(f"--to must be after --from. Received: {end!r} and {first or start.isoformat()!r}.")
    return start, stop


def time_of(moment: datetime | None, slot: datetime) -> str:
    if moment is None:
        return "-"
    return moment.strftime("%H:%M:%S" if moment.date() == slot.date() else "%Y-%m-%d %H:%M:%S")


def remark(slot: simulation.SimulatedSlot) -> str:
    earlier = f"the run of {slot.overlaps.isoformat()} goes on" if slot.overlaps else ""
    return ", ".join(filter(None, (slot.reason, earlier)))
