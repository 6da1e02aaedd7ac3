"""Schedule: creates, changes and reads schedules."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import backends
from ..backends.deliveries import Delivery
from ..backends.triggers import FailedKeeper, Trigger
from ..clock import Clock, SystemClock
from ..errors import CorruptObjectError, CorruptRunError, InputError, PodliftError, Problems, StoreError
from ..job.job import Job
from ..job.plan import Plan
from ..job.values import UNSET, Unset
from ..planning.roots import holding, in_bucket, searched
from ..planning.settings.merge import from_keywords, keywords_of
from ..records.named import forget, remember
from ..storage import emulator_clock
from ..storage.parallel import in_parallel
from ..text import duration
from . import booking, creation, lost_slots, preconditions, triggered
from .command_delivery import Delivered, deliver
from .firing import SlotMachine
from .records import (
    MISSED,
    REMOVED,
    RUNNING,
    SKIPPED,
    UNREADABLE,
    WAITING,
    Book,
    ScheduleRecord,
    SlotRecord,
    instant_of,
    key_of,
    utc,
)
from .runs import LocalRuns, url_of
from .triggered import TriggerState

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..job.job import JsonArgs
    from ..planning.settings.keywords import Env, Kubernetes, Local, MoreKeywords, Ray, Vertex

# A slot without a record after this time was not served.
_OVERDUE_S = 120.0
# How long an answer of a service counts as current.
_SEEN_S = 5.0
_SERVE = "podlift schedule serve"
# The number of last slots in which problems are looked for.
_OVERVIEW = 20
When = str | Callable[..., Any]


@dataclass(frozen=True, kw_only=True)
class Overview:
    """The state of a schedule at one moment.

    Args:
        seen: the state of its trigger; None without one.
        past: the records of its last slots, newest first.
        overdue: a sentence about the latest slot if its record is missing, else "".
        coming: the next slots.
    """

    record: ScheduleRecord
    trigger_state: TriggerState | None
    past: Sequence[SlotRecord]
    overdue: str
    coming: Sequence[datetime]
    problems: list[str]


class Schedule:
    """The handle of a schedule: `Schedule("weekly").history()`.

    Args:
        name: its name.
        root: as for `plan`; by default the roots of all configured backends are searched.

    Raises:
        InputError: there is no such schedule.
    """

    def __init__(self, name: str, *, root: str | Path | None = None, clock: Clock | None = None) -> None:
        self._book = holding(name, root, Book)
        self.root = self._book.root
        record = self._book.read(name)
        self.name = record.spec.name
        # A user may have moved the clock of an emulator.
        self._clock = clock or (emulator_clock.service_clock() if record.trigger else SystemClock())
        self._trigger_cache: tuple[float, TriggerState | None] = (float("-inf"), None)
        self._failed: tuple[float, list[FailedKeeper]] = (float("-inf"), [])

    def __repr__(self) -> str:
        return f"Schedule({self.name!r}, root={self.root!r})"

    @property
    def record(self) -> ScheduleRecord:
        """The stored schedule: `sdk.Schedule("weekly").record.paused`."""
        return self._book.read(self.name)

    @property
    def plan(self) -> Plan:
        """The plan of its firings, with unfilled templates: `print(sdk.Schedule("weekly").plan)`."""
        return self._book.plan(self.record)

    def trigger(self) -> TriggerState | None:
        """Return the state of its trigger, compared with the records: `sdk.Schedule("weekly").trigger()`.

        None if `podlift schedule serve` starts its runs.
        """
        return self._trigger(self.record)

    def _trigger(self, record: ScheduleRecord) -> TriggerState | None:
        read_at, trigger_state = self._trigger_cache
        if self._clock.monotonic() - read_at > _SEEN_S:
            trigger_state = self._remember_trigger(triggered.state_of(record, self._clock))
        return trigger_state

    def _remember_trigger(self, trigger_state: TriggerState | None) -> TriggerState | None:
        """Keep this as the state of the trigger for some seconds."""
        self._trigger_cache = (self._clock.monotonic(), trigger_state)
        return trigger_state

    def trigger_lines(self) -> list[tuple[str, str]]:
        """Return place, account, rights and price of its trigger, by label: `dict(sdk.Schedule("weekly").trigger_lines())`."""
        record = self.record
        service = triggered.service_of(record)
        if service is None:
            return []
        return service.lines(
            triggered.draft(record.spec, self.plan, self._now(), schedule_id=record.id, name=record.trigger)
        )

    def next(self, count: int = 5) -> list[datetime]:
        """Return the next slots: `sdk.Schedule("weekly").next(3)`.

        There are none while the schedule is paused, or has no trigger at its service.

        Args:
            count: number of slots.
        """
        record = self.record
        return record.spec.slots.next(count, self._now()) if triggered.fires(record, self.trigger()) else []

    def history(self, limit: int | None = 20) -> list[SlotRecord]:
        """Return the records of its slots, newest first: `[slot.state for slot in sdk.Schedule("weekly").history(5)]`.

        Slots with a failed keeper are included.

        Args:
            limit: the maximum number of slots; None for all.
        """
        return self._history(self.record, limit)

    def _history(self, record: ScheduleRecord, limit: int | None) -> list[SlotRecord]:
        listed, now = self._book.keys(record), self._now()
        # Records of future slots are few, unless a clock was ahead; they are no history.
        past = bisect_right(listed, key_of(now) + "~")
        shown_keys = listed[max(past - limit, 0) if limit else 0 :]
        read = in_parallel(lambda key: self._slot(record, key), shown_keys)
        records = [slot for slot in read if not slot.is_early(now.timestamp())]
        live_records = [*map(self._live, records)]
        others = {*listed}.difference(shown_keys)
        live_records = lost_slots.complete(record, live_records, others, self._failed_keepers(record))
        return live_records[::-1][:limit]

    def _slot(self, record: ScheduleRecord, key: str) -> SlotRecord:
        """Return the record of a listed slot. A damaged one has the reason, and leaves the others as they are."""
        try:
            slot = self._book.listed_slot(record, key)
            slot.moment  # noqa: B018 - its time is read like the rest
            return slot
        except (CorruptRunError, CorruptObjectError, ValueError) as error:
            moment = instant_of(key).astimezone(record.spec.slots.zone)
            return SlotRecord(key=key, slot=moment.isoformat(), state=UNREADABLE, reason=str(error))

    def spent_usd(self) -> float | None:
        """Return the cost of the runs of this month and their keepers, in US dollars: `sdk.Schedule("weekly").spent_usd()`.

        A run or a keeper that goes on counts with the most that it can cost. None if nothing is billed.
        """
        record = self.record
        slots = self._book.of_month(record, self._now())
        costs_usd = [slot.cost_usd for slot in slots if slot.cost_usd is not None]
        deliveries = backends.load(record.backend).services.deliveries if record.trigger else None
        price = deliveries.keeper_price(self._book.plan(record), record.spec.overlap) if deliveries else None
        keepers_usd = booking.of_keepers(slots, price)
        return sum(costs_usd) + keepers_usd if costs_usd or keepers_usd else None

    def _failed_keepers(self, record: ScheduleRecord) -> list[FailedKeeper]:
        """Return the keepers that failed recently; none if the service does not answer, which other sentences report."""
        read_at, keepers = self._failed
        service = triggered.service_of(record)
        if service is not None and self._clock.monotonic() - read_at > _SEEN_S:
            keepers = []
            with suppress(PodliftError):
                since = lost_slots.horizon(record, self._now())
                keepers = service.failed(self.plan, self.name, since, self._clock)
            self._failed = (self._clock.monotonic(), keepers)
        return keepers

    def pause(self, why: str = "by hand") -> None:
        """Stop firing until `unpause`: `sdk.Schedule("weekly").pause("the data are late")`.

        Slots of the pause are recorded as skipped. A run that is still going continues.

        Args:
            why: the reason, which the list of schedules shows.
        """
        record = self.record
        service = triggered.service_of(record)
        if service is not None and service.get(record.trigger, self._clock) is not None:
            service.pause(record.trigger, self._clock)
        self._book.change(self.name, paused=why)
        self._trigger_cache = (float("-inf"), None)

    def unpause(self) -> None:
        """Fire again, from the next slot on: `sdk.Schedule("weekly").unpause()`."""
        record = self.record
        service = triggered.service_of(record)
        if service is not None:
            trigger = triggered.there(record, service, self._clock)
            if trigger.broken:
                raise triggered.broken(record, service, trigger)
            record = triggered.unpaused(record, trigger)
        if record.paused:
            # The slots of the pause must not count as missed.
            SlotMachine(self._book, self._clock).record_passed(record)
        if service is not None:
            service.unpause(record.trigger, self._clock)
        self._book.change(self.name, paused="", pause_ended=self._clock.now())
        self._trigger_cache = (float("-inf"), None)

    def run(self) -> SlotRecord:
        """Fire now, beside the slots, and return the record: `sdk.Schedule("weekly").run().state`.

        Overlap and preconditions hold as for a slot. On a cloud, a keeper is created, which the record names; it takes the
        slot as soon as it has a machine. Elsewhere, a server starts a slot that waits for an earlier run.
        """
        record = self.record
        service = triggered.service_of(record)
        if service is None:
            return SlotMachine(self._book, self._clock).fire(record, Delivery(created=self._clock.now(), by_hand=True))
        keeper, now = service.fire_now(triggered.there(record, service, self._clock), self._clock), self._now()
        slot = now.astimezone(record.spec.slots.zone).replace(microsecond=0)
        return triggered.handed_over(keeper, slot, now.timestamp(), cause="manual")

    def run_due(
        self, *, slot: datetime | None = None, within_s: float | None = None, id: str = "", detach: bool = False
    ) -> Delivered:
        """Deliver the due slot, as its trigger does, and follow its run to the end: `sdk.Schedule("weekly").run_due()`.

        Any number of triggers may do it, also at the same time: a slot starts one run.

        Args:
            slot: another slot, with its offset from UTC.
            within_s: do nothing if the slot is older, in seconds.
            id: name of the delivery. An interrupted delivery of the same name continues with its slot.
            detach: let a keeper of the backend's service follow the run.

        Raises:
            InputError: it is no slot of the schedule.
        """
        return deliver(self.name, self.root, self._clock, slot=slot, within_s=within_s, id=id, detach=detach)

    def remove(self) -> None:
        """Remove the schedule and its history; its runs stay: `sdk.Schedule("weekly").remove()`."""
        triggered.remove(self._book, self.record, self._clock)
        forget("schedule", self.name)

    def problems(self) -> list[str]:
        """Return a sentence for each problem: `sdk.Schedule("weekly").problems()`.

        It reports overdue and failed slots, a pause after failures, and changes at its service.
        """
        return overview(self).problems

    def _problems(
        self, record: ScheduleRecord, trigger_state: TriggerState | None, past: Sequence[SlotRecord], overdue: str
    ) -> list[str]:
        if record.paused == REMOVED:
            return [f"its removal was interrupted. Next: podlift schedule remove {self.name}"]
        problems = [f"it is paused: {record.paused}"] if record.paused and record.paused != "by hand" else []
        problems += [
            f"its former trigger {slot.name} was not removed yet. Next: podlift schedule create again"
            for slot in record.former
        ]
        problems += trigger_state.problems if trigger_state is not None else []
        if past and past[0].state == SKIPPED and past[0].reason.startswith(MISSED):
            problems.append(f"the slot {past[0].slot} was {past[0].reason}")
        now = self._clock.now()
        problems += [
            f"the slot {slot.slot} waits, and no server is there to start it. Next: {self._serve}"
            for slot in past[:_OVERVIEW]
            if slot.state == WAITING and not slot.keeper and slot.expires < now
        ]
        newest = next((slot for slot in past if slot.state != SKIPPED and not slot.is_open), None)
        if newest is not None and newest.state in ("FAILED", "LOST", UNREADABLE):
            problems.append(f"the slot {newest.slot} is {newest.state}: {newest.reason}")
        return [*problems, *filter(None, [overdue, self._unserved(record, past[:_OVERVIEW])])]

    def _unserved(self, record: ScheduleRecord, past: Sequence[SlotRecord]) -> str:
        """Return a sentence if no server runs, unless a cron of the user's delivers the slots."""
        if record.trigger or record.paused:
            return ""
        last = self._book.heartbeat()
        by_cron = [slot for slot in past if slot.cause != "manual" and not slot.reason.startswith(MISSED)]
        if last.is_live(self._clock.now()) or any(last.is_before(slot.taken) for slot in by_cron):
            return ""
        if (ahead_s := last.time - self._clock.now()) > 0 and not last.ended:
            return (
                f"a server's last sign of life is {duration(ahead_s)} after now. Next: set the clocks of both machines"
            )
        since = utc(last.time).isoformat(timespec="seconds")
        what = f"no server has run since {since}" if last.time else "nothing starts while no server runs"
        return f"{what}. Next: {self._serve}"

    @property
    def _serve(self) -> str:
        return f"{_SERVE}{f' --root {self.root}' if in_bucket(self.root) else ''}"

    def overdue(self) -> str:
        """Return a sentence about the latest slot if its record is missing: `sdk.Schedule("weekly").overdue()`; else ""."""
        record = self.record
        return self._overdue(record, self._trigger(record), self._history(record, 1))

    def _overdue(self, record: ScheduleRecord, trigger_state: TriggerState | None, past: Sequence[SlotRecord]) -> str:
        service = triggered.service_of(record)
        grace_s = _OVERDUE_S if service is None else service.grace_s
        latest = record.spec.slots.latest(utc(self._clock.now() - grace_s))
        if not triggered.fires(record, trigger_state) or not latest or latest.timestamp() <= record.since:
            return ""
        if key_of(latest) in [slot.key for slot in past] or self._is_recorded(record, latest):
            return ""
        if service is None:
            return f"the slot {latest.isoformat()} is overdue. Next: {self._serve}"
        last = trigger_state.trigger.last_attempt if trigger_state and trigger_state.trigger else None
        when = (
            "has not delivered yet" if last is None else f"last delivered at {utc(last).isoformat(timespec='seconds')}"
        )
        return (
            f"the slot {latest.isoformat()} is overdue: {service.title} {when}. Next: look for the keeper's job and its log, "
            f"labelled podlift-schedule={self.name}"
        )

    def _is_recorded(self, record: ScheduleRecord, slot: datetime) -> bool:
        key = key_of(slot)
        if key not in self._book.keys(record, [key.partition("/")[0]]):
            return False
        return not self._slot(record, key).is_early(self._clock.now())

    def _live(self, record: SlotRecord) -> SlotRecord:
        """Return a record with the state of its run, if no server has recorded its end yet."""
        if record.state != RUNNING:
            return record
        try:
            status = LocalRuns(emulator_clock.of_machine(self._clock)).status(url_of(self.root, record))
        except PodliftError as error:
            return replace(record, reason=str(error))
        if not status.state.terminal:
            return record
        # An emulator with a moved clock may have fired it; a run has the times of this machine.
        ahead_s = emulator_clock.ahead_s(record.started or record.taken) if self.record.trigger else 0.0
        ended = status.since + ahead_s if status.since else None
        about = {"state": status.state.value, "reason": status.reason.value, "ended": ended}
        return replace(record, registered=status.registered, **about)  # type: ignore[arg-type]

    def _now(self) -> datetime:
        return utc(self._clock.now())


def overview(schedule: Schedule, limit: int = _OVERVIEW) -> Overview:
    """Return the state of a schedule from one reading of its records, with at least `limit` of its last slots."""
    record = schedule.record
    trigger_state, past = schedule._trigger(record), schedule._history(record, max(limit, _OVERVIEW))
    overdue = schedule._overdue(record, trigger_state, past)
    return Overview(
        record=record,
        trigger_state=trigger_state,
        past=past,
        overdue=overdue,
        coming=record.spec.slots.next(5, schedule._now()) if triggered.fires(record, trigger_state) else [],
        problems=schedule._problems(record, trigger_state, past, overdue),
    )


def schedule(
    job: str | Path | Callable[..., Any] | Job,
    *,
    name: str,
    cron: str,
    time_zone: str = "UTC",
    overlap: str = "skip",
    missed: str = "skip",
    when: When | Sequence[When] = (),
    notify: str | Sequence[str] = (),
    notify_skips: int = 3,
    max_cost_usd_per_month: float | None = None,
    pause_after_failures: int = 3,
    trigger: str = "auto",
    location: str = "",
    args: JsonArgs | None = None,
    workers: int | None = None,
    accelerator: str | None = None,
    backend: str | Kubernetes | Local | Ray | Vertex | None = None,
    root: str | Path | None = None,
    env: Env | None = None,
    model: str | Unset | None = UNSET,
    checkpoint_every: str | float | Unset | None = UNSET,
    max_steps: int | Unset | None = UNSET,
    timeout: str | float | Unset | None = UNSET,
    max_cost_usd: float | Unset | None = UNSET,
    **more: Unpack[MoreKeywords],
) -> Schedule:
    """Run a job at the slots of a cron expression: `sdk.schedule("train.py", name="weekly", cron="0 3 * * 1")`.

    The code is packaged now; each firing is a separate run. Firings on this machine are started by `podlift schedule serve`,
    firings on Vertex AI by Cloud Scheduler, with no process of yours. A schedule of that name is changed;
    if nothing differs, nothing is written. In `args` and `inputs`, `{slot}`, `{slot:%Y-%m-%d}` and `{previous_success}` stand
    for the slot of the firing and the slot of the last success.

    Args:
        job: as for `plan`.
        name: name of the schedule.
        cron: five fields: minute, hour, day of the month, month, day of the week.
        time_zone: name in the IANA database, such as "Europe/Berlin".
        overlap: the action at a slot while an earlier run is not over: "skip", "queue", "replace" or "allow".
        missed: "skip" for slots at which nothing fired, or "catch_up_last" to start the last one late.
        when: preconditions: "data_changed(INPUT)", "min_new_examples(INPUT, N)", "older_than(20h)", or a function of the
            job's code, also as "module:function". A slot is skipped unless all of them hold.
        notify: "webhook:VARIABLE" or "command:WORDS": receives failures, repeated skips, and the end of a schedule that
            fails.
        notify_skips: notify when this many slots in a row were skipped; 0 for never.
        max_cost_usd_per_month: limit on the cost of the runs of a calendar month and their keepers, in US dollars; slots that
            could break it are skipped.
        pause_after_failures: pause after this many failures in a row; 0 for never.
        trigger: "auto" for the service of the backend, if it has one; "serve" for `podlift schedule serve`, which then has to
            run on some machine.
        location: region of the trigger; by default the region of the first location.
        args: arguments of the program, as JSON. A list is argv; a dict is keyword arguments of a function, or `--key value` of
            a script.
        workers: training tasks, including the chief. At least 1.
        accelerator: hardware of each task: a name from `podlift accelerators`.
        backend: where the run executes: "local", "vertex", "ray", "kubernetes", or a Kubernetes, Local, Ray or Vertex value.
        root: the folder, or gs://BUCKET/PREFIX, below which runs live; `PODLIFT_ROOT`, else `~/.podlift`.
        env: environment variables of every task. Texts are stored with the run: for a secret give `FromCaller()`, which stores
            the name only, or a `Secret`.
        model: name of the model in the registry.
        checkpoint_every: how often to save: auto, 5m, 500steps, 500steps,5m or none.
        max_steps: training steps after which the run ends as a success.
        timeout: time limit of the whole run.
        max_cost_usd: limit on the cost of all jobs of a run together, in US dollars, jobs before a resume included.
        **more: every other setting is a keyword too: `vertex_project="mine"`, `code_requirements="none"`. See
            docs/reference/settings.md.

    Raises:
        InputError: with every mistake that was found; nothing was written.
    """
    settings, target = from_keywords(keywords_of(locals()))
    problems, texts = Problems(), list[str]()
    for condition in [when] if isinstance(when, str) or callable(when) else when:
        with problems.collect():
            texts.append(str(preconditions.parse(condition)))
    problems.raise_if_any()
    spec = creation.draft(
        name=name,
        cron=cron,
        time_zone=time_zone,
        overlap=overlap,
        missed=missed,
        when=tuple(texts),
        notify=(notify,) if isinstance(notify, str) else tuple(notify),
        notify_skips=notify_skips,
        pause_after_failures=pause_after_failures,
        max_cost_usd_per_month=max_cost_usd_per_month,
        trigger=trigger,
        location=location,
    )
    outcome = creation.create(creation.prepare(spec, job, settings, target))
    return Schedule(name, root=outcome.plan.root)


@dataclass(frozen=True, kw_only=True)
class Listing:
    """The schedules below some roots, triggers without a schedule, and a sentence for each omission."""

    schedules: Sequence[Schedule]
    orphans: Sequence[Trigger]
    problems: Sequence[str]
    roots: Sequence[str]


def listed(root: str | Path | None = None, clock: Clock | None = None, names: Sequence[str] = ()) -> Listing:
    """Return the schedules of a root, by default of all configured backends, by name; of `names` only these.

    Raises:
        InputError: there is no schedule of one of the names.
    """
    if names:
        named = [Schedule(name, root=root, clock=clock) for name in dict.fromkeys(names)]
        return Listing(schedules=named, orphans=(), problems=(), roots=[one.root for one in named])
    roots, problems = searched(root)
    schedules, orphans, callers_clock, clock = list[Schedule](), list[Trigger](), clock, clock or SystemClock()
    for folder in roots:
        try:
            members, damaged = _members(folder, callers_clock)
            problems += damaged.values()
            survey = triggered.survey(folder, [one.record for one in members], clock)
        except StoreError as error:
            # Schedules of other roots are still listed.
            if len(roots) == 1:
                raise
            problems.append(f"The schedules of {folder} are not listed: {error}")
            continue
        for one in members:
            one._remember_trigger(survey.states.get(one.name))
        schedules += members
        # The trigger of a damaged schedule has not lost it.
        orphans += [trigger for trigger in survey.orphans if trigger.schedule not in damaged]
        problems += survey.problems
        if in_bucket(folder):
            remember("schedule", (one.name for one in members), folder)
    return Listing(schedules=schedules, orphans=orphans, problems=problems, roots=roots)


def _members(root: str, clock: Clock | None) -> tuple[list[Schedule], dict[str, str]]:
    """Return the schedules of a root, and a sentence for each damaged one, which leaves the others as they are."""
    members, damaged = list[Schedule](), dict[str, str]()
    for name in Book(root).names():
        try:
            members.append(Schedule(name, root=root, clock=clock))
        except (CorruptRunError, CorruptObjectError) as error:
            damaged[name] = f"The schedule {name} is not listed: {error}"
        except InputError:
            # It was removed meanwhile.
            continue
    return members, damaged


def remove_orphan(name: str, root: str | Path | None = None) -> bool:
    """Remove the triggers of a schedule of this name that has no records; False if there are none."""
    roots = searched(root)[0]
    return any([triggered.remove_orphan(below, name, SystemClock()) for below in roots])
