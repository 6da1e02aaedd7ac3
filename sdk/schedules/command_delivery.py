"""A delivery by a command: `podlift schedule run --due`, and with it every trigger that can run a command.

It is a keeper in the process of the command: the same slot, lock and rules as for a job that a cloud's service creates, so that
triggers of any kind may deliver one slot.
"""

from __future__ import annotations

import math
import os
import re
import secrets
import socket
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone

from .. import backends, checks
from ..backends.deliveries import KEEPER_LEASE_S, Delivery
from ..backends.keeper_main import keep
from ..backends.triggers import Trigger, TriggerService
from ..clock import Clock
from ..errors import InputError, MissingError
from ..status import EXIT_CANCELLED, EXIT_CHECKPOINTED, EXIT_DONE, EXIT_INFRASTRUCTURE, EXIT_USER, State
from ..storage import emulator_clock, secret_manager
from . import triggered
from .firing import SlotMachine, again
from .kept_slot import KeptSlot
from .notices import Notifier
from .policy import CATCH_UP
from .records import SKIPPED, TAKEN, Book, ScheduleRecord, SlotRecord, slot_of, utc
from .runs import KeptRuns, Runs, url_of
from .slots import EARLY_S, Cron

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
# The slot of a repeated delivery of the same name is searched among this number of newest slots.
_LOOKED_AT = 50
_CODES = {
    State.CANCELLED.value: EXIT_CANCELLED,
    State.CHECKPOINTED.value: EXIT_CHECKPOINTED,
    State.FAILED.value: EXIT_USER,
    State.LOST.value: EXIT_INFRASTRUCTURE,
}


@dataclass(frozen=True, kw_only=True)
class Delivered:
    """The outcome of a delivery.

    Args:
        record: the record of its slot; None if no slot was due.
        text: one sentence.
        exit_code: of the run that this delivery started, 0 if it succeeded; 0, too, if the delivery started none.
    """

    record: SlotRecord | None
    text: str
    exit_code: int = EXIT_DONE


def deliver(
    name: str,
    root: str,
    clock: Clock,
    *,
    slot: datetime | None = None,
    within_s: float | None = None,
    id: str = "",
    detach: bool = False,
    runs: Runs | None = None,
    notifier: Notifier | None = None,
) -> Delivered:
    """Deliver a slot, and follow its run to the end. The arguments are described at `Schedule.run_due`."""
    book = Book(root)
    schedule, now = book.read(name), clock.now()
    delivery = _delivery(book, schedule, slot, id, now)
    late = "" if delivery.slot is not None else _not_due(schedule, within_s, now)
    if late:
        return Delivered(record=None, text=late)
    if detach:
        return _handed_over(book, schedule, delivery, clock)
    clock = emulator_clock.of_machine(clock)
    notifier = notifier or Notifier(clock, secret=secret_manager.value)
    machine = SlotMachine(book, clock, runs or KeptRuns(clock), notifier)
    keep(KeptSlot(machine, name, schedule.id, lambda _: delivery), math.inf, clock)
    return _outcome(book, schedule, delivery, machine.runs)


def _delivery(book: Book, schedule: ScheduleRecord, slot: datetime | None, id: str, now: float) -> Delivery:
    if id and not _ID.fullmatch(id):
        raise InputError(
            f"--id: letters, digits, '.', '_' and '-', at most 100, not '.', '_' or '-' first. Received: {id!r}."
        )
    job = f"command/{id or f'{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}'}"
    if slot is not None:
        slot = _checked(schedule.spec.slots, schedule, slot, now)
    elif id and (record := _slot_of(book, schedule, job)) is not None:
        slot = record.moment
    return Delivery(job=job, created=now, slot=slot.timestamp() if slot else None, lease_s=KEEPER_LEASE_S)


def _checked(cron: Cron, schedule: ScheduleRecord, slot: datetime, now: float) -> datetime:
    """Return the named slot; InputError with the nearest slots if it is no slot, is in the future, or is too old."""
    moment = slot.astimezone(timezone.utc)
    latest = cron.latest(moment)
    if latest is None or latest.astimezone(timezone.utc) != moment:
        coming = next(cron.after(moment), None)
        around = " and ".join(near.isoformat() for near in (latest, coming) if near)
        raise InputError(
            f"--slot: not a slot of {schedule.spec.name!r}. Received: {slot.isoformat()!r}. Nearest: {around}."
        )
    if moment.timestamp() > now + EARLY_S:
        raise InputError(
            f"--slot: it has not come yet. Received: {slot.isoformat()!r}. Next: podlift schedule run without --due."
        )
    if moment.timestamp() < schedule.since:
        since = datetime.fromtimestamp(schedule.since, cron.zone).isoformat(timespec="seconds")
        raise InputError(f"--slot: the slots of this schedule began at {since}. Received: {slot.isoformat()!r}.")
    return latest


def _slot_of(book: Book, schedule: ScheduleRecord, job: str) -> SlotRecord | None:
    """Return the newest slot taken by a delivery of this name, except slots that it caught up."""
    newest = book.slots(schedule, book.keys(schedule)[-_LOOKED_AT:])
    return next((record for record in reversed(newest) if record.keeper == job and record.cause != CATCH_UP), None)


def _not_due(schedule: ScheduleRecord, within_s: float | None, now: float) -> str:
    """Return why there is nothing to deliver, "" if there is."""
    cron, moment = schedule.spec.slots, utc(now)
    slot = cron.nearest(moment)
    if slot is not None and (within_s is None or now - slot.timestamp() <= within_s):
        return ""
    coming = next(cron.after(moment), None)
    last = f"the last slot was {slot.isoformat()}" if slot else "there was none yet"
    return f"nothing is due: {last}{f', the next one is {coming.isoformat()}' if coming else ''}"


def _outcome(book: Book, schedule: ScheduleRecord, delivery: Delivery, runs: Runs) -> Delivered:
    """Return the outcome of the delivery."""
    key, slot = slot_of(schedule, delivery)
    try:
        record = book.slot(schedule, key)
    except MissingError:
        return Delivered(record=None, text=f"the schedule was removed while the slot {slot.isoformat()} was served")
    if record.keeper != delivery.job:
        return Delivered(record=record, text=_duplicate_text(record))
    text = f"the slot {record.slot}: {record.state} {record.reason}".rstrip()
    code = _CODES.get(record.state, EXIT_DONE)
    if code and record.run:
        with suppress(InputError):
            exit_code = runs.status(url_of(book.root, record)).exit_code
            code = code if exit_code is None else exit_code
    return Delivered(record=record, text=text, exit_code=code)


def _duplicate_text(record: SlotRecord) -> str:
    what = f"its run {record.run} is {record.state}" if record.run else f"it is {record.state}"
    why = f" ({record.reason})" if record.state == SKIPPED else ""
    return f"the slot {record.slot} was delivered before: {what}{why}. Nothing to do"


# --- A keeper of the service follows the run --------------------------------------------------------------------------


def _handed_over(book: Book, schedule: ScheduleRecord, delivery: Delivery, clock: Clock) -> Delivered:
    """Create the keeper of the slot, unless the slot has its own already."""
    service = backends.load(schedule.backend).services.triggers
    if service is None:
        raise InputError(
            f"--detach: no process would follow a run of {schedule.backend} and report its end. Next: omit --detach."
        )
    key, slot = slot_of(schedule, delivery)
    with suppress(MissingError):
        record = book.slot(schedule, key)
        # A keeper that died before the run began is replaced by the next one.
        if record.state != TAKEN:
            book.note(schedule, key, again(record, delivery))
            return Delivered(record=record, text=_duplicate_text(record))
    keeper = service.fire_now(_trigger(book, schedule, service, clock), clock, slot.timestamp())
    record = triggered.handed_over(keeper, slot, clock.now(), key=key)
    return Delivered(record=record, text=f"the slot {record.slot}: {record.reason}")


def _trigger(book: Book, schedule: ScheduleRecord, service: TriggerService, clock: Clock) -> Trigger:
    """Return the trigger of the service; for a schedule without one, a draft and the files that the draft names."""
    if schedule.trigger:
        return triggered.there(schedule, service, clock)
    plan = book.plan(schedule)
    about = triggered.draft(schedule.spec, plan, utc(clock.now()), schedule_id=schedule.id, plan_key=schedule.plan)
    problems = checks.errors(service.review(about))
    if problems:
        raise InputError([f"--detach: {problem}" for problem in problems])
    request = service.render(about)
    service.upload(plan)
    book.put_files(request.files)
    return Trigger(
        name=request.name,
        cron=about.cron,
        time_zone=about.time_zone,
        paused=True,
        description="",
        root=book.root,
        schedule=schedule.spec.name,
        id=schedule.id,
        settings=request.settings,
    )
