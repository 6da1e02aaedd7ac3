"""Schedules that a service starts: the trigger that each needs, and how its existing trigger compares with the records."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta, timezone
from itertools import islice, pairwise

from .. import backends
from ..backends.triggers import Trigger, TriggerDraft, TriggerRejectedError, TriggerRequest, TriggerService, digest_of
from ..clock import Clock
from ..errors import InputError, UnavailableError
from ..job.plan import Plan
from ..planning import diff
from .records import TAKEN, Book, ScheduleRecord, ScheduleSpec, SlotRecord
from .slots import Cron, zone_data

# The function with which the container of a keeper finds its slot.
KEEPS = "sdk.schedules.kept_slot:of_container"
IN_SYNC, CHANGED, MISSING, ORPHAN, UNKNOWN = "in sync", "changed there", "missing", "orphan", "unknown"
_MONTH = timedelta(days=30)
# The shortest period is searched between this number of slots.
_SEARCHED = 400


@dataclass(frozen=True, kw_only=True)
class TriggerState:
    """A schedule's trigger as its service has it now."""

    service: str  # its title
    sync: str
    trigger: Trigger | None = None
    why: str = ""  # the differences, or why they are unknown

    @property
    def problems(self) -> list[str]:
        """Return a sentence for each reason for concern."""
        name = "its trigger" if self.trigger is None else self.trigger.name.rpartition("/")[2]
        texts = []
        if self.sync == MISSING:
            texts.append(f"{self.service} has no trigger for it: it does not fire. Next: podlift schedule create again")
        elif self.sync == CHANGED:
            texts.append(f"{name} was changed in {self.service}: {self.why}. Next: podlift schedule create again")
        elif self.sync == UNKNOWN:
            texts.append(f"{self.service} cannot be asked: {self.why}")
        if self.trigger is not None and self.trigger.status:
            texts.append(f"{self.service} could not deliver the last time: {self.trigger.status}")
        return texts


def fires(record: ScheduleRecord, trigger_state: TriggerState | None) -> bool:
    """Return True if the schedule fires. An unknown trigger state counts as firing."""
    trigger = trigger_state.trigger if trigger_state else None
    stopped = trigger is not None and (trigger.paused or trigger.broken)
    there = trigger_state is None or (trigger_state.sync != MISSING and not stopped)
    return there and not record.paused


def service_of(record: ScheduleRecord) -> TriggerService | None:
    """Return the service that starts a schedule; None if `podlift schedule serve` does."""
    return backends.load(record.backend).services.triggers if record.trigger else None


def pause(record: ScheduleRecord, clock: Clock) -> None:
    """Pause the trigger of a schedule. Raises PodliftError without permission. A container can do it, too."""
    service = backends.load(record.backend).services.deliveries or service_of(record)
    if service is not None and record.trigger:
        service.pause(record.trigger, clock)


def former_services(record: ScheduleRecord) -> list[tuple[str, TriggerService]]:
    """Return the former triggers of a schedule that still exist, each with its service."""
    services = [(former.name, backends.load(former.backend).services.triggers) for former in record.former]
    return [(name, service) for name, service in services if service is not None]


def remove_former(record: ScheduleRecord, clock: Clock) -> None:
    """Remove the former triggers of a schedule. Its new trigger exists by now: a slot that both deliver runs once."""
    for name, service in former_services(record):
        service.delete(name, clock)


def remove(book: Book, record: ScheduleRecord, clock: Clock) -> None:
    """Remove a schedule with its triggers. An interrupted removal leaves it listed; the next removal finishes it."""
    service = service_of(record)
    if service is not None:
        service.delete(record.trigger, clock)
    remove_former(record, clock)
    book.remove(record)


def draft(
    spec: ScheduleSpec, plan: Plan, now: datetime, *, schedule_id: str = "", plan_key: str = "", name: str = ""
) -> TriggerDraft:
    """Return the request to a service, as a draft; `name` is the full name of the existing trigger."""
    slots = spec.slots
    about = {**asdict(spec), "plan": plan_key}
    return TriggerDraft(
        plan=plan,
        schedule=spec.name,
        id=schedule_id,
        name=name,
        cron=spec.cron,
        time_zone=spec.time_zone,
        period_s=period_s(slots, now),
        firings=sum(1 for _ in slots.between(now, now + _MONTH)),
        overlap=spec.overlap,
        notify=spec.notify,
        location=spec.location,
        digest=digest_of(about),
        max_cost_usd_per_month=spec.max_cost_usd_per_month,
        keeps=KEEPS,
        zone={spec.time_zone: base64.b64encode(zone_data(spec.time_zone)).decode()},
    )


def period_s(slots: Cron, now: datetime) -> float:
    """Return the shortest time between two slots."""
    moments = [slot.astimezone(timezone.utc) for slot in islice(slots.after(now), _SEARCHED)]
    return min(((after - before).total_seconds() for before, after in pairwise(moments)), default=float("inf"))


def differences(trigger: Trigger, request: TriggerRequest) -> list[str]:
    """Return the changes that a service is to make to a trigger."""
    changes = diff.of_values("trigger", trigger.settings, request.settings)
    # The fields left out hold digests of the rest.
    plain = [
        change for change in changes if not re.search(r"^description$|\.container(Spec)?\.args\.|-digest$", change.path)
    ]
    texts = [str(change) for change in plain] + ([f"~ {trigger.broken}"] if trigger.broken else [])
    if changes and not texts:
        texts = ["~ started code: another version of podlift, or of the schedule"]
    return [f"trigger: {text}" for text in texts]


def state_of(record: ScheduleRecord, clock: Clock) -> TriggerState | None:
    """Return the trigger of a schedule; None if it has none."""
    service = service_of(record)
    if service is None:
        return None
    try:
        return compared(record, service, service.get(record.trigger, clock))
    except (UnavailableError, TriggerRejectedError) as error:
        return TriggerState(service=service.title, sync=UNKNOWN, why=str(error))


def compared(record: ScheduleRecord, service: TriggerService, trigger: Trigger | None) -> TriggerState:
    """Return how a trigger compares with the records."""
    if trigger is None:
        return TriggerState(service=service.title, sync=MISSING)
    if trigger.broken:
        return TriggerState(service=service.title, sync=CHANGED, trigger=trigger, why=trigger.broken)
    if trigger.digest == record.digest:
        return TriggerState(service=service.title, sync=IN_SYNC, trigger=trigger)
    return TriggerState(service=service.title, sync=CHANGED, trigger=trigger, why=_changed(record, trigger))


def _changed(record: ScheduleRecord, trigger: Trigger) -> str:
    """Return the differences that the records show."""
    if trigger.id != record.id:
        return f"it belongs to {trigger.schedule!r} of {trigger.root!r}" if trigger.root else "podlift did not make it"
    pairs = (
        ("the cron expression", trigger.cron, record.spec.cron),
        ("the time zone", trigger.time_zone, record.spec.time_zone),
    )
    named = [f"{what} is {there!r} there and {here!r} here" for what, there, here in pairs if there != here]
    return ", ".join(named) or "its request, or the settings of its delivery"


@dataclass(frozen=True, kw_only=True)
class Survey:
    """The triggers of a root: by the name of their schedule, the ones without a schedule, and the errors of listing."""

    states: Mapping[str, TriggerState]
    orphans: Sequence[Trigger]
    problems: Sequence[str]
    services: Mapping[str, TriggerService]  # of the orphans, by their names


def survey(root: str, records: Sequence[ScheduleRecord], clock: Clock) -> Survey:
    """Return the triggers of a root, with one list for each place."""
    triggers, problems, failed = dict[str, Trigger](), list[str](), dict[tuple[str, str], str]()
    services = dict[str, TriggerService]()
    for place in Book(root).places():
        service = backends.load(place[0]).services.triggers
        if service is None:
            continue
        try:
            triggers_by_name = {trigger.name: trigger for trigger in service.list_all(place[1], clock)}
            triggers |= triggers_by_name
            services |= dict.fromkeys(triggers_by_name, service)
        except (UnavailableError, TriggerRejectedError) as error:
            failed[place] = str(error)
            problems.append(f"Triggers without a schedule are not listed: {error}")
    states = {}
    for record in records:
        service, place = service_of(record), (record.backend, place_of(record.trigger))
        if service is None:
            continue
        if place in failed:
            states[record.spec.name] = TriggerState(service=service.title, sync=UNKNOWN, why=failed[place])
        else:
            states[record.spec.name] = compared(record, service, triggers.get(record.trigger))
    names = {record.trigger for record in records} | {trigger.name for record in records for trigger in record.former}
    orphans = [trigger for trigger in triggers.values() if trigger.root == root and trigger.name not in names]
    return Survey(states=states, orphans=orphans, problems=problems, services=services)


def place_of(name: str) -> str:
    """Return the place of a trigger, by its full name."""
    # PLACE/KIND/ID
    return name.rsplit("/", 2)[0] if name else ""


def remove_orphan(root: str, name: str, clock: Clock) -> bool:
    """Delete the triggers of this name that have lost their schedule's records; False if there are none."""
    book = Book(root)
    surveyed = survey(root, [book.read(schedule_name) for schedule_name in book.names()], clock)
    orphans = [trigger for trigger in surveyed.orphans if trigger.schedule == name]
    for trigger in orphans:
        surveyed.services[trigger.name].delete(trigger.name, clock)
    return bool(orphans)


def there(record: ScheduleRecord, service: TriggerService, clock: Clock) -> Trigger:
    """Return the trigger of a schedule; InputError if it is gone."""
    trigger = service.get(record.trigger, clock)
    if trigger is None:
        raise InputError(
            f"{service.title} has no trigger for the schedule {record.spec.name!r}: someone has removed it. Next: podlift "
            "schedule create again."
        )
    return trigger


def handed_over(keeper: str, slot: datetime, now: float, *, key: str = "", cause: str = "schedule") -> SlotRecord:
    """Return a first record for a slot, just after the creation of its keeper."""
    reason = f"the keeper {keeper.rpartition('/')[2]} takes the slot once it has a machine"
    return SlotRecord(key=key, slot=slot.isoformat(), state=TAKEN, reason=reason, cause=cause, keeper=keeper, taken=now)


def broken(record: ScheduleRecord, service: TriggerService, trigger: Trigger) -> InputError:
    return InputError(
        f"{service.title} does not fire the schedule {record.spec.name!r}, and unpausing it would not help: {trigger.broken}. "
        "Next: podlift schedule create again, which creates the trigger again."
    )


def check_owner(there: Trigger, root: str, schedule_id: str, service: TriggerService) -> None:
    """Raise InputError if a trigger of the wanted name belongs to something else."""
    if (there.root, there.id) == (root, schedule_id):
        return
    owner = f"the schedule {there.schedule!r} (id {there.id}) of {there.root}" if there.root else "nothing of podlift"
    step = "another name for the schedule, or delete that trigger there"
    if there.root == root:
        step = f"podlift schedule remove {there.schedule}, which removes it"
    raise InputError(
        f"{service.title} has a trigger {there.name.rpartition('/')[2]!r} already, which belongs to {owner}. Nothing was "
        f"changed. Next: {step}."
    )


def unpaused(record: ScheduleRecord, trigger: Trigger) -> ScheduleRecord:
    """Return the record with the reason why its slots of late did not fire."""
    return replace(record, paused="at the service") if trigger.paused and not record.paused else record
