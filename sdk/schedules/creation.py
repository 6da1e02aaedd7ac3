"""Creates and changes schedules: checks and plans the specification, compares it with the stored schedule, and writes it."""

from __future__ import annotations

import math
import os
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .. import backends, checks, ids
from ..backends.triggers import Trigger, TriggerDraft, TriggerRejectedError, TriggerRequest, TriggerService
from ..clock import Clock, SystemClock
from ..errors import InputError, Problems, UnavailableError
from ..job.job import Job
from ..job.layout import RootPaths
from ..job.plan import Plan
from ..job.values import changed
from ..planning import diff
from ..planning.pack import packaged
from ..planning.prepare import checked, planned, refuse_inside_task
from ..planning.roots import configured_backend, in_bucket
from ..planning.settings.merge import Destination, gather
from ..records import spending
from ..records.named import plan_key, remember
from ..records.sync import push
from ..storage import emulator_clock
from . import clock_changes, notices, policy, preconditions, slots, templates, triggered
from .firing import SlotMachine
from .records import MAX_NAME, REMOVED, Book, FormerTrigger, ScheduleRecord, ScheduleSpec, utc
from .slots import Cron

# Ends the id of the stored plan; each firing has another id.
_TEMPLATE = "aaaaaa"
TRIGGERS = ("auto", "serve")
# Stands in a dry run for the id that a new schedule gets.
_UNKNOWN_ID = "<id>"


def draft(**fields: Any) -> ScheduleSpec:
    """Return a checked specification, or raise InputError with every mistake."""
    spec, problems = ScheduleSpec(**{**fields, "folder": os.getcwd()}), Problems()
    with problems.collect():
        ids.check_name(spec.name, MAX_NAME)
    with problems.collect():
        Cron(spec.cron, spec.time_zone)
    for name, choices in (("overlap", policy.OVERLAPS), ("missed", policy.MISSED), ("trigger", TRIGGERS)):
        with problems.collect():
            policy.check_choice(name, getattr(spec, name), choices)
    for text in spec.when:
        with problems.collect():
            preconditions.parse(text)
    for text in spec.notify:
        with problems.collect():
            notices.check(text)
    for number in ("pause_after_failures", "notify_skips"):
        # For Python, True is the number 1.
        if type(count := getattr(spec, number)) is not int or count < 0:
            problems.add(f"{number} must be a whole number, 0 or more. Received: {count!r}.")
    if (most_usd := spec.max_cost_usd_per_month) is not None and (
        isinstance(most_usd, bool) or not isinstance(most_usd, (int, float)) or not 0 < most_usd < math.inf
    ):
        problems.add(f"max_cost_usd_per_month must be a finite number above 0. Received: {most_usd!r}.")
    problems.raise_if_any()
    return spec


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A checked schedule, not yet written."""

    spec: ScheduleSpec
    plan: Plan
    warnings: Sequence[str]
    service: TriggerService | None = None  # starts the runs; None for podlift schedule serve
    trigger: TriggerDraft | None = None


@dataclass(frozen=True, kw_only=True)
class Created:
    """What `create` did."""

    record: ScheduleRecord
    plan: Plan
    outcome: str  # created, changed or unchanged
    changes: Sequence[str] = ()
    warnings: Sequence[str] = ()
    alert: str = ""  # the command that makes an alert of failed deliveries


def prepare(
    spec: ScheduleSpec, what: Any, flat_settings: Mapping[str, object], target: Destination, clock: Clock | None = None
) -> Prepared:
    """Return the schedule that `create` will write, or raise InputError with every mistake."""
    refuse_inside_task("schedule")
    backend = target.backend or configured_backend(os.environ)
    service = _service(backend if isinstance(backend, str) else type(backend).__name__.lower(), spec)
    clock = clock or _clock(service)
    now = utc(clock.now())
    # An input that depends on the slot is looked up when the slot fires.
    inputs, settings = _inputs(what, flat_settings)
    plain = {key: location for key, location in inputs.items() if not templates.has_template(location)}
    if isinstance(what, Job):
        what = replace(what, inputs=plain)
    elif inputs:
        settings["inputs"] = plain
    problems = Problems()
    if service is None and notices.secrets(spec.notify):
        problems.add(
            "notify: Secret Manager URLs work only for schedules on a cloud. podlift schedule serve reads the URL from an "
            "environment variable. Next: webhook:VARIABLE."
        )
    with problems.collect():
        templates.check([*inputs.values(), settings.get("args", getattr(what, "args", None))])
    if service is not None:
        # The folder and the disk of this machine mean nothing to it.
        spec = replace(spec, folder="")
        with problems.collect():
            _check_portable(spec, inputs, service)

    def mistakes(plan: Plan) -> list[str]:
        all_inputs = {**plan.job.inputs, **inputs}
        mistakes_of_plan = Problems()
        with mistakes_of_plan.collect():
            preconditions.check(spec.when, plan, all_inputs)
        if service is not None:
            mistakes_of_plan.messages += checks.errors(service.review(triggered.draft(spec, plan, now)))
        # The firing brings the keeper.
        fired = service.adapted(plan) if service else plan
        return [*mistakes_of_plan.messages, *_never_affordable(spec, fired, has_keeper=service is not None)]

    destination = replace(target, backend=backend, name=spec.name)
    with problems.closing():
        plan = _planned(what, settings, destination, inputs, mistakes)
    plan = replace(service.adapted(plan) if service else plan, run_id=f"{spec.name}-{_TEMPLATE}")
    # The name of a firing's run holds its slot, and each firing chooses the weights that it starts with.
    plan = replace(plan, job=changed(plan.job, model=plan.model or None), initial=None)
    spec = replace(spec, inputs={**plan.job.inputs, **inputs})
    warnings = clock_changes.warnings(spec.slots, now, service.title if service else "")
    if service is None:
        return Prepared(spec=spec, plan=plan, warnings=warnings)
    about = triggered.draft(spec, plan, now, schedule_id=_UNKNOWN_ID)
    warnings += [finding.message for finding in service.review(about) if finding.level == "warning"]
    return Prepared(spec=spec, plan=plan, warnings=warnings, service=service, trigger=about)


def _planned(
    what: Any,
    flat_settings: Mapping[str, object],
    target: Destination,
    slot_inputs: Collection[str],
    mistakes: Callable[[Plan], list[str]],
) -> Plan:
    """Return the plan of a run of the schedule's program; its errors and the mistakes of the schedule are one error."""
    problems = Problems()
    settings = replace(gather(what, flat_settings, target, os.environ, problems), slot_inputs=slot_inputs)
    plan = planned(settings, os.environ, problems, starting=True)
    return checked(plan, settings, mistakes(plan))


def _never_affordable(spec: ScheduleSpec, plan: Plan, *, has_keeper: bool) -> list[str]:
    """Return why each slot would be skipped for its money."""
    limit = spec.max_cost_usd_per_month
    service = backends.load(plan.backend).services.deliveries if has_keeper else None
    keeper = service.keeper_price(plan, spec.overlap) if service else None
    reason = "" if limit is None else spending.over_month(plan, limit, 0.0, keeper).removeprefix("budget: ")
    if not reason:
        return []
    unlimited = plan.job.limits.timeout_s is None and plan.job.limits.max_cost_usd is None
    step = "--timeout 12h" if unlimited else "a higher limit, or a shorter --timeout"
    # It may wait for much longer than the jobs run.
    step += ", with --vertex-keeper 12h for the longest life of the keeper" if keeper else ""
    if reason.startswith("no source"):
        step = "podlift accelerators --refresh, or --limit-allow-unknown-price"
    return [f"max_cost_usd_per_month={limit:g}: every slot would be skipped: {reason}. Next: {step}."]


def _service(backend: str, spec: ScheduleSpec) -> TriggerService | None:
    """Return the service that starts a schedule of a backend, None for podlift schedule serve."""
    service = backends.load(backend).services.triggers
    if service is None and spec.location:
        raise InputError(
            f"location: schedules of {backend} are started by podlift schedule serve, which has none. Received: "
            f"{spec.location!r}. Next: omit it."
        )
    return None if spec.trigger == "serve" else service


def _check_portable(spec: ScheduleSpec, inputs: Mapping[str, str], service: TriggerService) -> None:
    """Raise InputError for a cron expression or an input that works only on this machine."""
    problems = Problems()
    with problems.collect():
        slots.check_portable(spec.cron, service.title)
    for name, location in inputs.items():
        if templates.has_template(location) and "://" not in location:
            problems.add(
                f"inputs.{name}: {location!r} is on this machine's disk, which is not there when {service.title} fires. Next: "
                "upload it: gs://BUCKET/PATH."
            )
    problems.raise_if_any()


def _inputs(what: Any, flat_settings: Mapping[str, object]) -> tuple[dict[str, str], dict[str, object]]:
    """Return the inputs of a job as they were given, and the other settings."""
    settings = dict(flat_settings)
    inputs = what.inputs if isinstance(what, Job) else settings.pop("inputs", None) or {}
    return {str(name): str(location) for name, location in inputs.items()}, settings  # type: ignore[attr-defined]


def create(prepared: Prepared, clock: Clock | None = None) -> Created:
    """Write a schedule, or change the one of its name; nothing is written if nothing differs."""
    return _Creation(prepared, clock or _clock(prepared.service)).run()


def compare(prepared: Prepared, clock: Clock | None = None) -> tuple[str, Sequence[str]]:
    """Return the outcome that `create` would have (created, changed or unchanged) and the differences. Writes nothing."""
    return _Creation(prepared, clock or _clock(prepared.service), dry=True).expected()


def _clock(service: TriggerService | None) -> Clock:
    """Return the clock of a schedule's slots: the clock of an emulator may have been moved."""
    return SystemClock() if service is None else emulator_clock.service_clock()


class _Creation:
    """One call of `create`: the stored schedule, the new one, and the differences."""

    def __init__(self, prepared: Prepared, clock: Clock, *, dry: bool = False) -> None:
        self._spec, self._service, self._clock = prepared.spec, prepared.service, clock
        self._warnings = prepared.warnings
        self._plan = prepared.plan if dry else packaged(prepared.plan)
        self._book, self._now = Book(self._plan.root), clock.now()
        self._before = self._without_removed(self._book.find(self._spec.name), dry=dry)
        self._id = self._before.id if self._before else secrets.token_hex(4)
        self._changes = (
            _changes(self._before, self._book.plan(self._before), self._spec, self._plan) if self._before else []
        )
        same = self._before is not None and not self._changes
        # A plan also describes the machine that made it: an equal plan stays.
        self._key = self._before.plan if self._before and same else plan_key(self._spec.name, self._plan)
        self._request = self._rendered()
        self._there = self._existing_trigger()

    def _without_removed(self, before: ScheduleRecord | None, *, dry: bool) -> ScheduleRecord | None:
        """Return the stored schedule; finish an interrupted removal first."""
        if before is None or before.paused != REMOVED:
            return before
        if not dry:
            triggered.remove(self._book, before, self._clock)
        return None

    def _rendered(self) -> TriggerRequest | None:
        if self._service is None:
            return None
        return self._service.render(
            triggered.draft(
                self._spec,
                self._plan,
                utc(self._now),
                schedule_id=self._id,
                plan_key=self._key,
                name=self._before.trigger if self._before else "",
            )
        )

    def _existing_trigger(self) -> Trigger | None:
        """Return the existing trigger; InputError, before anything is written, if it belongs to another schedule."""
        if self._service is None or self._request is None:
            return None
        trigger = self._service.get(self._request.name, self._clock)
        if trigger is not None:
            triggered.check_owner(trigger, self._plan.root, self._id, self._service)
            follows = bool(self._changes) and self._before is not None and trigger.digest == self._before.digest
            # Differences that only follow from other changes are not listed.
            self._changes += [] if follows else triggered.differences(trigger, self._request)
        elif self._before is not None:
            self._changes.append(f"+ trigger: {self._service.title} has none")
        if self._before is not None and not self._changes:
            gone = self._book.absent(self._request.files)
            self._changes += [f"+ schedules/{key}: it was removed from the root" for key in gone]
        return trigger

    def expected(self) -> tuple[str, Sequence[str]]:
        """Return the outcome of `run`, and the differences."""
        if self._before is None:
            return "created", ()
        left = [f"- trigger: {former.name}, which is replaced" for former in self._before.former]
        moved = self._before.trigger != (self._request.name if self._request else "")
        return ("changed", [*self._changes, *left]) if self._changes or moved or left else ("unchanged", ())

    def run(self) -> Created:
        before, (outcome, changes) = self._before, self.expected()
        if before is not None and outcome == "unchanged":
            return self._created(before, outcome)
        backend = backends.load(self._plan.backend)
        backend.check(backend.render(self._plan))
        self._store()
        if in_bucket(self._plan.root):
            remember("schedule", [self._spec.name], self._plan.root)
        record = self._written(before)
        self._set_trigger(record)
        if record.former:
            triggered.remove_former(record, self._clock)
            record = self._book.change(record.spec.name, former=())
        return self._created(record, outcome, changes)

    def _created(self, record: ScheduleRecord, outcome: str, changes: Sequence[str] = ()) -> Created:
        alert = self._service.alert(record.trigger) if self._service else ""
        return Created(
            record=record, plan=self._plan, outcome=outcome, changes=changes, warnings=self._warnings, alert=alert
        )

    def _store(self) -> None:
        """Store the code, the plan and the files of the schedule."""
        if self._plan.local:
            push.upload_archive(self._plan.bundle, RootPaths(self._plan.root).bundle(self._plan.code.digest))
        if self._before is None or self._key != self._before.plan:
            self._book.put_plan(self._spec.name, self._plan)
        if self._service is not None and self._request is not None:
            self._service.upload(self._plan)
            self._book.put_files(self._request.files)
            self._book.add_place(self._plan.backend, triggered.place_of(self._request.name))

    def _written(self, before: ScheduleRecord | None) -> ScheduleRecord:
        spec = self._spec
        trigger = self._request.name if self._request else ""
        about = {
            "spec": spec,
            "bundle": self._plan.code.digest,
            "plan": self._key,
            "backend": self._plan.backend,
            "trigger": trigger,
            "digest": self._request.digest if self._request else "",
        }
        if before is None:
            record = ScheduleRecord(id=self._id, created=self._now, since=self._now, **about)  # type: ignore[arg-type]
            if not self._book.add(record):
                raise InputError(
                    f"Another process created the schedule {spec.name!r} at the same time. Next: try again."
                )
            return record
        former = before.former
        if before.trigger and before.trigger != trigger:
            # The old trigger is removed once the new one exists. Meanwhile both fire, and each slot still starts one run.
            former += (FormerTrigger(backend=before.backend, name=before.trigger),)
        former = tuple(old for old in former if old.name != trigger)
        if before.spec.slots != spec.slots:
            # The slots so far belong to the former expression.
            # The keeper of the last slot may still be starting: it serves the slot that it was created for.
            grace_s = self._service.grace_s if self._service is not None and before.trigger else 0.0
            SlotMachine(self._book, self._clock).record_passed(before, except_last_s=grace_s)
        since = before.since if before.spec.slots == spec.slots else self._now
        return self._book.change(spec.name, since=since, former=former, **about)

    def _set_trigger(self, record: ScheduleRecord) -> None:
        """Create or change the trigger; a new schedule that its service rejects is removed again."""
        if self._service is None or self._request is None:
            return
        try:
            if self._there is None:
                self._service.create(self._request, self._clock)
                if self._was_paused(record):
                    self._service.pause(self._request.name, self._clock)
            elif self._there.digest != self._request.digest or self._there.broken:
                self._service.update(self._request, self._there, self._clock)
        except UnavailableError as error:
            raise UnavailableError(
                f"The schedule is stored, but {self._service.title} did not answer. {error} Next: podlift schedule create "
                "again, which finishes it."
            ) from error
        except (TriggerRejectedError, InputError) as error:
            if self._before is None:
                self._book.remove(record)
            raise InputError(str(error)) from error

    def _was_paused(self, record: ScheduleRecord) -> bool:
        """Return whether a new trigger takes the place of a paused one."""
        former = [service.get(name, self._clock) for name, service in triggered.former_services(record)]
        return bool(record.paused) or any(trigger is not None and trigger.paused for trigger in former)


def _changes(before: ScheduleRecord, old: Plan, spec: ScheduleSpec, plan: Plan) -> list[str]:
    """Return the differences between a stored schedule and its new specification."""
    fields = [
        f"~ {name}: {getattr(before.spec, name)!r} -> {getattr(spec, name)!r}"
        for name in ScheduleSpec.__dataclass_fields__
        if getattr(before.spec, name) != getattr(spec, name)
    ]
    # The request and the findings follow from the rest, and tasks on a cloud do not use this machine's Python.
    ignored = ("findings",) if plan.capabilities.runs_here else ("findings", "environment")
    changes = diff.compare(old, plan, ({}, {}))
    return fields + [f"{change.section}: {change}" for change in changes if change.section not in ignored]
