"""Schedule: creates, changes and reads schedules."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from .. import backends, ids
from ..clock import Clock, SystemClock
from ..errors import InputError, PodliftError, Problems
from ..planning import diff, remote
from ..planning.pack import packaged
from ..planning.prepare import make_plan, refuse_inside_task
from ..planning.roots import resolve_root
from ..planning.settings.merge import Destination
from ..records.sync import push
from ..spec.job import Job
from ..spec.layout import RootPaths
from ..spec.plan import Plan
from ..spec.policies import Local
from . import clock_changes, notices, policy, preconditions, templates
from .firing import LocalRuns, url_of
from .records import MAX_NAME, RUNNING, SKIPPED, Book, ScheduleRecord, ScheduleSpec, SlotRecord, key_of
from .server import Server
from .slots import Cron

# A slot without a record after this time was not served.
_OVERDUE_S = 120.0
# Ends the id of the stored plan; each firing has an id of its own.
_TEMPLATE = "aaaaaa"
When = str | Callable[..., Any]


@dataclass(frozen=True, kw_only=True)
class Created:
    """What `create` did."""

    record: ScheduleRecord
    plan: Plan
    outcome: str  # created, changed or unchanged
    changes: Sequence[str] = ()
    warnings: Sequence[str] = ()


class Schedule:
    """The handle of a schedule: `Schedule("weekly").history()`.

    Args:
        name: its name.
        root: as for `plan`.

    Raises:
        InputError: there is no such schedule.
    """

    def __init__(self, name: str, *, root: str | Path | None = None, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self.root = resolve_root(root, os.environ)
        self._book = Book(self.root)
        self.name = self._book.read(name).spec.name

    def __repr__(self) -> str:
        return f"Schedule({self.name!r}, root={self.root!r})"

    @property
    def record(self) -> ScheduleRecord:
        """The schedule as it is stored."""
        return self._book.read(self.name)

    @property
    def plan(self) -> Plan:
        """The plan of its firings, before the templates are filled in."""
        return self._book.plan(self.record)

    def next(self, count: int = 5) -> list[datetime]:
        """Return the next slots; none while the schedule is paused."""
        record = self.record
        return [] if record.paused else record.spec.slots.next(count, self._now())

    def history(self, limit: int | None = 20) -> list[SlotRecord]:
        """Return the records of its slots, newest first; None for all."""
        record = self.record
        keys = self._book.keys(record)
        found = [self._book.slot(record, key) for key in reversed(keys[-limit:] if limit else keys)]
        return [self._live(each) for each in found]

    def pause(self, why: str = "by hand") -> None:
        """Stop firing; slots are recorded as skipped. A run that goes on continues."""
        self._book.change(self.name, paused=why)

    def resume(self) -> None:
        """Fire again, from the next slot on."""
        record = self.record
        if record.paused:
            # The slots of the pause must not count as missed.
            Server(self.root, self._clock).record_passed(record)
        self._book.change(self.name, paused="", resumed=self._clock.now())

    def run(self) -> SlotRecord:
        """Fire now, beside the slots, and return what became of it. Overlap and preconditions hold as for a slot."""
        return Server(self.root, self._clock).fire(self.name)

    def delete(self) -> None:
        """Remove the schedule and its history; its runs stay."""
        self._book.delete(self.record)

    def problems(self) -> list[str]:
        """Return a sentence for each reason for concern: overdue, failing, paused after failures."""
        record, now = self.record, self._now()
        found = [f"it is paused: {record.paused}"] if record.paused and record.paused != "by hand" else []
        newest = next((each for each in self.history(50) if each.state != SKIPPED and not each.is_open), None)
        if newest is not None and newest.state in ("FAILED", "LOST"):
            found.append(f"the slot {newest.slot} is {newest.state}: {newest.reason}")
        latest = record.spec.slots.latest(datetime.fromtimestamp(now.timestamp() - _OVERDUE_S, timezone.utc))
        if not record.paused and latest and latest.timestamp() > record.since and not self._is_recorded(latest):
            found.append(f"the slot {latest.isoformat()} is overdue. Next: podlift schedule serve")
        return found

    def _is_recorded(self, slot: datetime) -> bool:
        key = key_of(slot)
        return key in self._book.keys(self.record, [key.partition("/")[0]])

    def _live(self, record: SlotRecord) -> SlotRecord:
        """Return a record with the state of its run, if no server has recorded its end yet."""
        if record.state != RUNNING:
            return record
        try:
            status = LocalRuns(self._clock).status(url_of(self.root, record))
        except PodliftError as error:
            return replace(record, reason=str(error))
        if not status.state.terminal:
            return record
        return replace(record, state=status.state.value, reason=status.reason.value, ended=status.since or None)

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._clock.now(), timezone.utc)


def schedule(
    job: str | Path | Callable[..., Any] | Job,
    *,
    name: str,
    cron: str,
    time_zone: str = "UTC",
    backend: str | Local = "local",
    overlap: str = "skip",
    missed: str = "skip",
    when: Sequence[When] = (),
    notify: Sequence[str] = (),
    max_cost_usd: float | None = None,
    pause_after_failures: int = 3,
    root: str | Path | None = None,
) -> Schedule:
    """Run a job at the slots of a cron expression: `sdk.schedule("train.py", name="weekly", cron="0 3 * * 1")`.

    The code is packaged now; each firing is a run of its own. `podlift schedule serve` starts them. A schedule of that name
    is changed; if nothing differs, nothing is written. In `args` and `inputs`, `{slot}`, `{slot:%Y-%m-%d}` and
    `{previous_success}` stand for the firing's own slot and for that of the last success.

    Args:
        job: what `plan` accepts.
        name: name of the schedule.
        cron: five fields: minute, hour, day of the month, month, day of the week.
        time_zone: name in the IANA database, such as "Europe/Berlin".
        backend: "local", or a Local. Schedules run on this machine so far.
        overlap: what a slot does while an earlier run goes on: "skip", "queue", "replace" or "allow".
        missed: what becomes of slots at which no server was there: "skip", or "catch_up_last" to start the last one late.
        when: preconditions: "data_changed(INPUT)", "min_new_examples(INPUT, N)", "older_than(20h)", or a function of the
            job's own code, also as "module:function". A slot is skipped unless all of them hold.
        notify: "webhook:VARIABLE" or "command:WORDS": receives failures, repeated skips, and the end of a schedule that
            fails.
        max_cost_usd: limit of each firing.
        pause_after_failures: pause after this many failures in a row; 0 for never.
        root: as for `plan`.

    Raises:
        InputError: with every mistake that was found; nothing was written.
    """
    problems, texts = Problems(), list[str]()
    for each in when:
        with problems.collect():
            texts.append(str(preconditions.parse(each)))
    problems.raise_if_any()
    spec = draft(
        name=name,
        cron=cron,
        time_zone=time_zone,
        overlap=overlap,
        missed=missed,
        when=tuple(texts),
        notify=tuple(notify),
        pause_after_failures=pause_after_failures,
    )
    given: dict[str, object] = {} if max_cost_usd is None or isinstance(job, Job) else {"max_cost_usd": max_cost_usd}
    if isinstance(job, Job) and max_cost_usd is not None:
        job = replace(job, limits=replace(job.limits, max_cost_usd=max_cost_usd))
    create(prepare(spec, job, given, Destination(backend=backend, root=root)))
    return Schedule(name, root=root)


def draft(**fields: Any) -> ScheduleSpec:
    """Return a checked specification, or raise InputError with every mistake."""
    spec, problems = ScheduleSpec(**{**fields, "folder": os.getcwd()}), Problems()
    with problems.collect():
        ids.check_name(spec.name)
        if len(spec.name) > MAX_NAME:
            raise InputError(f"The name is too long. Received: {spec.name!r}. Allowed: {MAX_NAME} characters.")
    with problems.collect():
        Cron(spec.cron, spec.time_zone)
    with problems.collect():
        policy.check_choice("overlap", spec.overlap, policy.OVERLAPS)
    with problems.collect():
        policy.check_choice("missed", spec.missed, policy.MISSED)
    for text in spec.when:
        with problems.collect():
            preconditions.parse(text)
    for text in spec.notify:
        with problems.collect():
            notices.check(text)
    for number in ("pause_after_failures", "notify_skips"):
        if getattr(spec, number) < 0:
            problems.found.append(f"{number} must be 0 or more. Received: {getattr(spec, number)!r}.")
    problems.raise_if_any()
    return spec


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A schedule that is decided and not yet written."""

    spec: ScheduleSpec
    plan: Plan
    warnings: Sequence[str]


def prepare(
    spec: ScheduleSpec, what: Any, given: Mapping[str, object], target: Destination, clock: Clock | None = None
) -> Prepared:
    """Return what `create` will write, or raise InputError with every mistake."""
    refuse_inside_task("schedule")
    backend = target.backend or "local"
    name = backend if isinstance(backend, str) else type(backend).__name__.lower()
    if not backends.load(name).capabilities.supervised_here:
        # A server of schedules is a process of this machine, and so is what supervises its runs.
        raise InputError(
            f"Schedules run on this machine so far. Received: backend={name!r}. Next: backend='local', and podlift schedule "
            "serve."
        )
    # An input that depends on the slot is looked up when the slot fires.
    inputs, settings = _inputs(what, given)
    plain = {key: place for key, place in inputs.items() if not templates.has_template(place)}
    if isinstance(what, Job):
        what = replace(what, inputs=plain)
    elif inputs:
        settings["inputs"] = plain
    templates.check([*inputs.values(), settings.get("args", getattr(what, "args", None))])
    made = make_plan(what, settings, replace(target, backend=backend, name=spec.name), os.environ, verb="schedule")
    known = {**made.job.inputs, **inputs}
    preconditions.check(spec.when, made, known)
    clock = clock or SystemClock()
    now = datetime.fromtimestamp(clock.now(), timezone.utc)
    warnings = clock_changes.warnings(spec.slots, now)
    made = made.for_run(f"{spec.name}-{_TEMPLATE}")
    return Prepared(spec=replace(spec, inputs=known), plan=made, warnings=warnings)


def _inputs(what: Any, given: Mapping[str, object]) -> tuple[dict[str, str], dict[str, object]]:
    """Return the inputs of a job as they were given, and the other settings."""
    settings = dict(given)
    found = what.inputs if isinstance(what, Job) else settings.pop("inputs", None) or {}
    return {str(name): str(place) for name, place in found.items()}, settings  # type: ignore[attr-defined]


def create(prepared: Prepared, clock: Clock | None = None) -> Created:
    """Write a schedule, or change the one of its name; nothing is written if nothing differs."""
    clock, spec = clock or SystemClock(), prepared.spec
    plan = packaged(remote.with_local_folder(prepared.plan, os.environ))
    book, now = Book(plan.root), clock.now()
    before = book.find(spec.name)
    changes = _changes(before, book.plan(before), spec, plan) if before else []
    if before and not changes:
        return Created(record=before, plan=plan, outcome="unchanged", warnings=prepared.warnings)
    if plan.local:
        push.upload_archive(plan.bundle, RootPaths(plan.root).bundle(plan.code.digest))
    key = book.put_plan(spec.name, plan)
    if before is None:
        record = ScheduleRecord(
            id=secrets.token_hex(4), spec=spec, bundle=plan.code.digest, plan=key, created=now, since=now
        )
        if not book.add(record):
            raise InputError(f"Another process created the schedule {spec.name!r} at the same time. Next: try again.")
        return Created(record=record, plan=plan, outcome="created", warnings=prepared.warnings)
    if before.spec.slots != spec.slots:
        # The slots so far were those of the expression before.
        Server(plan.root, clock).record_passed(before)
    since = before.since if before.spec.slots == spec.slots else now
    record = book.change(spec.name, spec=spec, bundle=plan.code.digest, plan=key, since=since)
    return Created(record=record, plan=plan, outcome="changed", changes=changes, warnings=prepared.warnings)


def _changes(before: ScheduleRecord, old: Plan, spec: ScheduleSpec, plan: Plan) -> list[str]:
    """Return the differences between a schedule and what it is to become."""
    found = [
        f"~ {name}: {getattr(before.spec, name)!r} -> {getattr(spec, name)!r}"
        for name in ScheduleSpec.__dataclass_fields__
        if getattr(before.spec, name) != getattr(spec, name)
    ]
    # The request and the findings follow from the rest.
    changes = diff.compare(old, plan, ({}, {}))
    changes = diff.compare(old, plan, ({}, {}))
    return found + [f"{change.section}: {change}" for change in changes if change.section != "findings"]


def listed(root: str | Path | None = None, clock: Clock | None = None) -> list[Schedule]:
    """Return the schedules of a root, by name."""
    return [Schedule(name, root=root, clock=clock) for name in Book(resolve_root(root, os.environ)).names()]
