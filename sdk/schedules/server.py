"""Starts what is due: the loop of `podlift schedule serve`, and a single firing for `podlift schedule run`.

A slot is taken by creating its record, so that any number of servers start one run. The run's id follows from the slot, so
that a server that takes over from a killed one finds what that one has started. Everything is read again from the root: a
server has no state that matters.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta

from ..clock import Clock
from ..errors import PodliftError, RunNotFoundError, may_pass
from ..hardware.pricing import Price
from ..job.plan import Plan
from ..logs import logger
from ..process import spawn
from ..records import spending
from ..status import State, Status
from ..text import counted
from . import booking, policy, preconditions
from .firing import LocalRuns, Runs, plan_of, url_of
from .notices import Notice, Notifier
from .recent_slots import RecentSlots, hours_since, newest
from .records import (
    MISSED,
    RUNNING,
    SKIPPED,
    TAKEN,
    TOLERANCE_S,
    WAITING,
    Book,
    ScheduleRecord,
    SlotRecord,
    key_of,
    run_id_of,
    utc,
)

_log = logger("schedules")
POLL_S = 5.0
LEASE_S = 600.0
# Missed slots beyond this number share one record.
_MOST_MISSED = 500
_MOST_RESUMES = 3
NO_KEEPER, _NO_SERVER = f"{MISSED}: no keeper took it", f"{MISSED}: no server was there, or its machine slept"
_FAILED = (State.FAILED.value, State.LOST.value)


class Server:
    """Serves the schedules of a root. Several servers of one root are harmless."""

    # Who holds a slot for longer than this, on another machine, is taken for dead.
    lease_s = LEASE_S
    keeper = ""  # name of the cloud's job that this is, "" on a machine of the user

    def __init__(self, root: str, clock: Clock, runs: Runs | None = None, notifier: Notifier | None = None) -> None:
        self._book, self._clock = Book(root), clock
        self._root = root
        self._runs: Runs = runs or LocalRuns(clock)
        self._notifier = notifier or Notifier(clock)
        self._holder = f"{spawn.identity(os.getpid())} {secrets.token_hex(4)}"
        self._recent: dict[str, RecentSlots] = {}
        self._busy = (0.0, 0.0)
        self._warned: dict[str, str] = {}

    def serve(self) -> None:
        """Start what is due, until the process ends."""
        while True:
            due = self.tick()
            self._clock.sleep(max(0.0, min(due - self._clock.now(), POLL_S)))

    def serve_once(self) -> None:
        """Start what is due now, and wait for the notifications."""
        self.tick()
        self.settle()

    def settle(self) -> None:
        """Wait until the notifications have arrived, or were given up."""
        self._notifier.settle()

    def tick(self) -> float:
        """Do once what is due now, and return the unix time of the next slot."""
        begin, steady, due = self._clock.now(), self._clock.monotonic(), float("inf")
        for name in self._names():
            try:
                schedule = self._book.read(name)
                # Others are started by the service of their backend.
                if not schedule.trigger:
                    due = min(due, self._tick(schedule, begin))
            except (PodliftError, OSError) as error:
                self._warn(name, error)
        # By the monotonic clock: while it was busy, the other one may have been set.
        self._busy = (begin, begin + self._clock.monotonic() - steady)
        return due

    def _names(self) -> list[str]:
        try:
            return self._book.names()
        except (PodliftError, OSError) as error:
            self._warn("", error)
            return []

    def _warn(self, name: str, error: Exception) -> None:
        """Log what is wrong with a schedule, or with all of them, until something else is."""
        text = str(error)
        if self._warned.get(name) != text:
            self._warned[name] = text
            _log.warning("%s: %s", f"The schedule {name}" if name else "The schedules", text)

    def fire(self, name: str) -> SlotRecord:
        """Fire a schedule now, as a slot of its own, and return the record."""
        schedule, now = self._book.read(name), self._now()
        recent = self._remembered(schedule, now)
        self._refresh(recent)
        slot = now.astimezone(schedule.spec.slots.zone)
        key = f"{key_of(now)}-manual-{secrets.token_hex(3)}"
        record = self._fire(recent, key, slot, "manual") or recent.records[key]
        self.settle()
        return record

    def record_passed(self, schedule: ScheduleRecord, *, except_last_s: float = 0.0) -> None:
        """Record the slots so far at which nothing started, except those of the last seconds."""
        now = self._now() - timedelta(seconds=except_last_s)
        recent = self._remembered(schedule, now)
        missed = NO_KEEPER if schedule.trigger else _NO_SERVER
        reason = f"paused: {schedule.paused}" if schedule.paused else missed
        self.record_skipped(recent, self._unrecorded(recent, now), reason)

    def _served_now(self) -> float:
        """Return the time that records of slots hold."""
        return self._served(self._clock.now())

    def _served(self, time: float) -> float:
        """Return a time of this machine as records of slots hold it."""
        return time

    def _now(self) -> datetime:
        return utc(self._clock.now())

    def _tick(self, schedule: ScheduleRecord, begin: float) -> float:
        now = utc(begin)
        recent = self._remembered(schedule, now)
        self._refresh(recent)
        # A failure may have paused it.
        recent.schedule = self._book.read(schedule.spec.name)
        self._start_waiting(recent)
        self._serve_due(recent, now)
        self._start_waiting(recent)
        coming = next(recent.spec.slots.after(now), None)
        return coming.timestamp() if coming else float("inf")

    def _remembered(self, schedule: ScheduleRecord, now: datetime) -> RecentSlots:
        """Return the newest records, with those that other processes have added or changed."""
        known = self._recent.get(schedule.id)
        if known is not None and known.is_ahead_of(now):
            # The clock was set back.
            del self._recent[schedule.id]
            known = None
        recent = known or self._recent.setdefault(schedule.id, RecentSlots(schedule))
        recent.schedule = schedule
        listed = self._book.keys(schedule, hours_since(recent.listed, now))
        recent.listed, recent.now = now, self._served_now()
        self._read(recent, [*(record.key for record in recent.open), *newest(listed, now)])
        if known is None:
            records = recent.newest_first
            self._read(recent, [key for record in records for key in (record.earlier, record.success)])
        return recent

    def _read(self, recent: RecentSlots, keys: Iterable[str]) -> None:
        """Read records by their names, as far as they are not known to have ended; "" stands for none."""
        known = recent.records
        wanted = [key for key in dict.fromkeys(keys) if key and (key not in known or known[key].is_open)]
        for record in self._book.slots(recent.schedule, wanted):
            recent.add(record)

    # --- Slots that are due ----------------------------------------------------------------------------------------------

    def _serve_due(self, recent: RecentSlots, now: datetime) -> None:
        due = self._unrecorded(recent, now)
        if recent.schedule.paused:
            self.record_skipped(recent, due, f"paused: {recent.schedule.paused}")
            return
        late = [slot for slot in due if self._is_late(slot, now)]
        chosen = policy.caught_up(recent.spec.missed, late)
        self.record_skipped(recent, late[:-1] if chosen else late, _NO_SERVER)
        for slot in due:
            if slot is chosen:
                self._fire(recent, key_of(slot), slot, "catch_up")
            elif slot not in late:
                self._fire(recent, key_of(slot), slot, "schedule")

    def _unrecorded(self, recent: RecentSlots, now: datetime) -> list[datetime]:
        since = utc(recent.schedule.since)
        last = max(since, recent.last or since)
        return list(recent.spec.slots.between(last + timedelta(seconds=1), now + timedelta(microseconds=1)))

    def _is_late(self, slot: datetime, now: datetime) -> bool:
        begin, end = self._busy
        return (now - slot).total_seconds() > policy.LATE_S and not begin <= slot.timestamp() <= end

    def record_skipped(self, recent: RecentSlots, slots: list[datetime], reason: str, keeper: str = "") -> None:
        """Record slots at which nothing was started."""
        many = slots[: -_MOST_MISSED + 1] if len(slots) > _MOST_MISSED else []
        rest = slots[len(many) :]
        if many:
            reasons = f"{reason} ({len(many)} slots until {many[-1].isoformat()})"
            self._skip(recent, self._record(many[-1], SKIPPED, reason=reasons))
        for slot in rest:
            record = replace(self._record(slot, SKIPPED, reason=reason), keeper=keeper)
            self._skip(recent, record, quiet=reason.startswith("paused"))

    def _record(self, slot: datetime, state: str, *, reason: str) -> SlotRecord:
        now = self._served_now()
        return SlotRecord(key=key_of(slot), slot=slot.isoformat(), state=state, reason=reason, taken=now, ended=now)

    def _skip(self, recent: RecentSlots, record: SlotRecord, *, quiet: bool = False) -> None:
        record = replace(record, **recent.references())  # type: ignore[arg-type]
        if self._taken(recent, record) and not quiet:
            self._skipped(recent, record)

    # --- One firing ------------------------------------------------------------------------------------------------------

    def _fire(self, recent: RecentSlots, key: str, slot: datetime, cause: str, *notes: str) -> SlotRecord | None:
        """Take a slot and start its run; None if another process has taken it."""
        record = SlotRecord(
            key=key,
            slot=slot.isoformat(),
            state=TAKEN,
            cause=cause,
            run=run_id_of(recent.schedule, key, slot),
            holder=self._holder,
            expires=self._clock.now() + self.lease_s,
            keeper=self.keeper,
            notes=notes,
            taken=self._served_now(),
            **recent.references(),  # type: ignore[arg-type]
        )
        if not self._taken(recent, record):
            return None
        return self._proceed(recent, recent.records[key])

    def _taken(self, recent: RecentSlots, record: SlotRecord) -> bool:
        """Create the record of a slot, or replace one of a clock that was ahead; False if another process has taken it."""
        if self._book.take(recent.schedule, record):
            recent.add(record)
            return True
        stored = self._book.slot(recent.schedule, record.key)
        if stored.is_early(recent.now):
            after = replace(record, notes=(*record.notes, f"booked before its time ({stored.reason})"))
            if self._book.update(recent.schedule, stored, after):
                recent.add(after)
                return True
            stored = self._book.slot(recent.schedule, record.key)
        recent.add(stored)
        return False

    def _proceed(self, recent: RecentSlots, record: SlotRecord) -> SlotRecord:
        """Decide what becomes of a slot that this server holds."""
        if record.started is not None:
            # A server that is gone was about to submit it, or has.
            return self._start(recent, record)
        others = [slot for slot in recent.open if slot.key != record.key]
        active = [slot for slot in others if slot.state != WAITING]
        waiting = [slot for slot in others if slot.state == WAITING]
        decision = policy.decide(recent.spec.overlap, active=[slot.cause for slot in active], waiting=bool(waiting))
        if decision == "start":
            return self._start(recent, record)
        if decision == "skip":
            earlier = (active or waiting)[-1]
            why = f"overlap: the run {earlier.run} goes on" if active else f"overlap: the slot {earlier.slot} waits"
            return self._end(recent, record, SKIPPED, why)
        if decision == "replace":
            for slot in waiting:
                self._end(recent, slot, SKIPPED, f"overlap: replaced by {record.slot}")
            for slot in active:
                self._cancel(slot)
        return self._changed(recent, record, state=WAITING, reason=f"waits for {active[-1].run}" if active else "")

    def _cancel(self, record: SlotRecord) -> None:
        try:
            self._runs.cancel(url_of(self._root, record))
        except PodliftError as error:
            # A keeper tries again: the run would go on to its own end.
            if self.keeper and may_pass(error):
                raise

    def _start(self, recent: RecentSlots, record: SlotRecord) -> SlotRecord:
        """Check the preconditions and start the run."""
        success = recent.success if record.started is None else recent.records.get(record.success)
        try:
            template, schedule = self._book.plan(recent.schedule), recent.schedule
            plan = plan_of(template, schedule, record, success.moment if success else None)
            if record.started is None:
                reason, seen = preconditions.unmet(recent.spec.when, self._firing(recent, record, plan, success))
                most_usd = spending.most_usd(plan)
                keeper = self._keeper_price(plan, recent.spec.overlap)
                reason = reason or booking.booked(self._book, recent.schedule, record, plan, keeper, self._runs)
                if reason:
                    return self._end(recent, record, SKIPPED, reason)
                # From now on, who takes the slot over submits the same run, and decides nothing again.
                about = {"started": self._served_now(), "data": seen, "cost_usd": most_usd}
                about["success"] = success.key if success else ""
                record, mine = self._swapped(recent, record, state=TAKEN, **about)
                if not mine:
                    return record
            self._runs.submit(plan)
        except (PodliftError, OSError) as error:
            if self.keeper and isinstance(error, PodliftError) and may_pass(error):
                # It is tried again.
                raise
            return self._end(recent, record, State.FAILED.value, f"not started: {' '.join(str(error).split())}")
        _log.info("The schedule %s: the slot %s runs as %s", recent.spec.name, record.slot, record.run)
        return self._changed(recent, record, state=RUNNING, reason="")

    def _keeper_price(self, plan: Plan, overlap: str) -> Price | None:
        """Return the price of the machine that this is, None if nothing is billed."""
        return None

    def _firing(
        self, recent: RecentSlots, record: SlotRecord, plan: Plan, success: SlotRecord | None
    ) -> preconditions.Firing:
        return preconditions.Firing(
            plan=plan,
            schedule=recent.spec.name,
            slot=record.slot,
            now=self._clock.now(),
            success=success.slot if success else "",
            success_ended=success.ended if success else None,
            success_data=success.data if success else {},
        )

    def _start_waiting(self, recent: RecentSlots) -> None:
        waiting = [record for record in recent.open if record.state == WAITING]
        if waiting and len(waiting) == len(recent.open) and not recent.schedule.paused:
            held = self._hold(recent, waiting[0])
            if held is not None:
                self._start(recent, held)

    # --- Runs that go on -------------------------------------------------------------------------------------------------

    def _refresh(self, recent: RecentSlots) -> None:
        """Record the ends of runs, and take over what killed servers have left."""
        for record in recent.open:
            if record.state == TAKEN and self._is_abandoned(record):
                self._take_over(recent, record)
            elif record.state == RUNNING:
                self._follow(recent, record)

    def _is_abandoned(self, record: SlotRecord) -> bool:
        identity = record.holder.partition(" ")[0]
        dead = spawn.same_machine(identity) and not spawn.alive(identity)
        # A lease that is longer than any is one of a clock that was ahead.
        return dead or not -LEASE_S - TOLERANCE_S < self._clock.now() - record.expires <= 0

    def _take_over(self, recent: RecentSlots, record: SlotRecord) -> None:
        held = self._hold(recent, record)
        if held is not None:
            _log.warning("The schedule %s: the slot %s was left by a killed server", recent.spec.name, record.slot)
            self._proceed(recent, held)

    def _hold(self, recent: RecentSlots, record: SlotRecord) -> SlotRecord | None:
        """Take a slot over; None if another server was faster."""
        expires = self._clock.now() + self.lease_s
        held = replace(record, state=TAKEN, holder=self._holder, expires=expires, keeper=self.keeper)
        if not self._book.update(recent.schedule, record, held):
            return None
        recent.add(held)
        return held

    def _follow(self, recent: RecentSlots, record: SlotRecord) -> None:
        try:
            status = self._runs.status(url_of(self._root, record))
        except RunNotFoundError:
            self._end(recent, record, State.LOST.value, "the run was removed")
            return
        if not status.state.terminal:
            return
        # A keeper does not resume what an earlier one has left: its own slot is due. A resume begins the time limit again,
        # which the month has not booked.
        mine, limited = record.keeper == self.keeper, recent.spec.max_cost_usd_per_month is not None
        billed = limited and record.key in self._book.bookings(recent.schedule, record.slot[:7])[0]
        if mine and not billed and status.state in (State.LOST, State.CHECKPOINTED) and record.resumes < _MOST_RESUMES:
            with suppress(PodliftError):
                record = self._changed(recent, record, resumes=record.resumes + 1)
                self._runs.resume(url_of(self._root, record))
                return
        reason = status.reason.value if status.failure is None else f"{status.reason.value}: {status.failure.message}"
        self._end(recent, record, status.state.value, reason, status)

    # --- Records and notices ---------------------------------------------------------------------------------------------

    def _changed(self, recent: RecentSlots, record: SlotRecord, **fields: object) -> SlotRecord:
        return self._swapped(recent, record, **fields)[0]

    def _swapped(self, recent: RecentSlots, record: SlotRecord, **fields: object) -> tuple[SlotRecord, bool]:
        """Change the record of a slot; if another server was faster, return its record, which counts, and False."""
        after = replace(record, **fields)  # type: ignore[arg-type]
        mine = self._book.update(recent.schedule, record, after)
        if not mine:
            after = self._book.slot(recent.schedule, record.key)
        recent.add(after)
        return after, mine

    def _end(
        self,
        recent: RecentSlots,
        record: SlotRecord,
        state: str,
        reason: str,
        status: Status | None = None,
    ) -> SlotRecord:
        # A service whose clock is ahead must not make a run longer than it was.
        ended = min(self._served(status.since) if status and status.since else float("inf"), self._served_now())
        run = record.run if status or record.started else ""
        # What is not known stays the most that it may be.
        cost_usd = status.spent_usd if status else record.cost_usd if state == State.LOST.value else None
        registered = status.registered if status else None
        about = {"state": state, "reason": reason, "ended": ended, "run": run, "cost_usd": cost_usd}
        after, mine = self._swapped(recent, record, registered=registered, **about)
        if not mine:
            return after
        _log.info("The schedule %s: the slot %s: %s %s", recent.spec.name, record.slot, state, reason)
        if state == SKIPPED:
            self._skipped(recent, after)
        elif state in _FAILED:
            self._failed(recent, after)
        elif registered is not None and registered.outcome in ("promoted", "asks"):
            self._notify(recent, after, registered.outcome, str(registered))
        return after

    def _skipped(self, recent: RecentSlots, record: SlotRecord) -> None:
        count = 0
        for slot in recent.newest_first:
            if slot.key <= record.key:
                if slot.state != SKIPPED:
                    break
                count += 1
        if recent.spec.notify_skips and count and count % recent.spec.notify_skips == 0:
            self._notify(
                recent, record, "skipped", f"{count} slots in a row were skipped; the last one: {record.reason}"
            )

    def _failed(self, recent: RecentSlots, record: SlotRecord) -> None:
        self._notify(recent, record, "failed", f"the slot {record.slot} failed: {record.reason}")
        most = recent.spec.pause_after_failures
        failures = sum(1 for _ in self._failures(recent))
        if most and failures >= most and not recent.schedule.paused:
            why = f"{counted(failures, 'failure')} in a row"
            self._pause(recent.schedule, why)
            self._notify(
                recent, record, "paused", f"paused after {why}. Next: podlift schedule unpause {recent.spec.name}"
            )

    def _pause(self, schedule: ScheduleRecord, why: str) -> None:
        self._book.change(schedule.spec.name, paused=why)

    def _failures(self, recent: RecentSlots) -> Iterator[SlotRecord]:
        """Yield the newest ended records that failed, back to one that succeeded."""
        for record in recent.newest_first:
            if record.state == State.SUCCEEDED.value or (
                (record.ended or 0.0) < recent.schedule.pause_ended and not record.is_open
            ):
                return
            if record.state in _FAILED:
                yield record

    def _notify(self, recent: RecentSlots, record: SlotRecord, event: str, text: str) -> None:
        notice = Notice(
            schedule=recent.spec.name,
            event=event,
            slot=record.slot,
            state=record.state,
            reason=record.reason,
            run=record.run,
            text=f"podlift schedule {recent.spec.name}: {text}",
            model=record.registered.model if record.registered else "",
            version=record.registered.version if record.registered else 0,
        )
        self._notifier.send(recent.spec.notify, notice)
