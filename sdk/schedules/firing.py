"""Fires slots: the one state machine of a slot, for any delivery. `docs/explanation/decisions/schedules.md` draws it.

A process takes a slot by creating its record, so that any number of processes start one run. The run's id follows from the
slot, so that a process that takes over from a killed one finds its run. Each step reads the records again: losing a process
loses no state.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta

from ..backends.deliveries import SERVER_LEASE_S, Delivery
from ..clock import Clock
from ..errors import PodliftError, RunNotFoundError, may_pass
from ..job.plan import Plan
from ..logs import logger
from ..process import spawn
from ..records import spending
from ..status import State, Status
from ..text import counted, duration
from . import booking, policy, preconditions, triggered
from .notices import Notice, Notifier
from .recent_slots import FAILED, RecentSlots
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
    slot_of,
    utc,
)
from .runs import LocalRuns, Runs, plan_of, url_of

_log = logger("schedules")
# Missed slots beyond this number share one record.
_MOST_MISSED = 500
_MOST_RESUMES = 3
# States that another process may write to a slot while this process submits its run, and how often it may.
_OVERTAKEN, _TRIES = (TAKEN, SKIPPED, State.FAILED.value), 10
_NO_KEEPER, _NO_SERVER = f"{MISSED}: no keeper took it", f"{MISSED}: no server was there, or its machine slept"


class SlotMachine:
    """The slots of one schedule in one process: a server, a keeper, or a command.

    Args:
        book: the schedules of the root.
        clock: the time of this machine.
        runs: how runs are started and followed.
        notifier: sends notices.
        pause: pauses the trigger of a schedule after failures.
    """

    def __init__(
        self,
        book: Book,
        clock: Clock,
        runs: Runs | None = None,
        notifier: Notifier | None = None,
        pause: Callable[[ScheduleRecord, Clock], None] = triggered.pause,
    ) -> None:
        self.book, self._clock, self._pause_trigger = book, clock, pause
        self.runs: Runs = runs or LocalRuns(clock)
        self._notifier = notifier or Notifier(clock)
        self._slots = RecentSlots(book)
        self._holder = f"{spawn.identity(os.getpid())} {secrets.token_hex(4)}"
        self._delivery, self._key = Delivery(created=0.0), ""
        self._ahead_s: float | None = None  # the least lag of this machine's clock against the deliverer's
        self._held = False  # this process has had the slot of its delivery
        self._owed: dict[str, int] = {}  # by slot, the number of a resume that is counted, and that an outage prevented
        self.running = ""  # URL of the run that it waits for

    def fire(self, schedule: ScheduleRecord, delivery: Delivery) -> SlotRecord:
        """Fire the slot of a delivery, and return its record; a server takes the next steps."""
        self.step(schedule, delivery)
        self.close()
        return self._slots.records[self._key]

    def step(self, schedule: ScheduleRecord, delivery: Delivery) -> bool:
        """Take the next step for a delivery; False after the last one. Any process may repeat it after any failure."""
        if self._ahead_s is None:
            self._ahead_s = max(0.0, delivery.created - self._clock.now()) if delivery.job else 0.0
        slots, self._delivery = self._slots, delivery
        self._key, slot = slot_of(schedule, delivery)
        slots.read(schedule, slot, self._now())
        record = slots.records.get(self._key)
        if record is not None and record.keeper != delivery.job:
            # This process was cut off, and another one has taken its slot over: it ends.
            return not self._held and self._delivered_again(record)
        self._settle()
        if record is None:
            # A failure may have paused it.
            slots.schedule = self.book.read(schedule.spec.name)
            self._start_waiting()
            self._fire_due(slot)
        self._start_waiting()
        record, mine = slots.records.get(self._key), [each for each in slots.open if each.keeper == delivery.job]
        self._held |= record is not None and record.keeper == delivery.job
        self.running = next((url_of(self.book.root, each) for each in mine if each.state == RUNNING), "")
        # If another process was faster, the next step notes this delivery.
        return bool(mine) or (record is not None and not self._held)

    def give_up(self, schedule: ScheduleRecord) -> None:
        """Record that the time of this keeper is over: a waiting slot is skipped, and runs continue without the keeper."""
        self._slots.read(schedule, utc(self._clock.now()), self._now())
        for record in self._slots.open:
            if record.keeper == self._delivery.job and record.state == WAITING:
                self._end(record, SKIPPED, "overlap: the keeper's time was over before the earlier run ended")

    def close(self) -> None:
        """Wait until the notices have arrived or timed out, and stop waiting for runs, which continue."""
        self._notifier.settle()
        self.runs.close()

    def record_passed(self, schedule: ScheduleRecord, *, except_last_s: float = 0.0) -> None:
        """Record the slots so far without a record as skipped, except in the last seconds."""
        until = utc(self._clock.now() - except_last_s)
        self._slots.read(schedule, until, self._now())
        missed = _NO_KEEPER if schedule.trigger else _NO_SERVER
        self._skip(self._slots.unrecorded(until), f"paused: {schedule.paused}" if schedule.paused else missed)

    def _now(self) -> float:
        """Return the time by the clock of the records: no slot begins before its delivery."""
        return self._clock.now() + (self._ahead_s or 0.0)

    # --- Slots that are due ----------------------------------------------------------------------------------------------

    def _fire_due(self, slot: datetime) -> None:
        """Fire the slots that are due, and before them perhaps the last one that was missed."""
        delivery, schedule = self._delivery, self._slots.schedule
        if delivery.by_hand:
            self._take(self._key, slot, "manual")
            return
        due = self._due(slot)
        missed = [each for each, is_missed in due if is_missed]
        if schedule.paused:
            reason = f"paused: {schedule.paused}"
            self._skip(missed, reason)
            self._skip([each for each, is_missed in due if not is_missed], reason, delivery.job)
            return
        chosen = policy.caught_up(schedule.spec.missed, missed)
        self._skip(missed[:-1] if chosen else missed, _NO_KEEPER if delivery.job else _NO_SERVER)
        for each, is_missed in due:
            if each is chosen:
                self._take(key_of(each), each, policy.CATCH_UP)
            elif not is_missed:
                late = _lateness(each, delivery)
                self._take(key_of(each), each, "schedule", *([f"delivered {late}"] if late else []))

    def _due(self, slot: datetime) -> list[tuple[datetime, bool]]:
        """Return the slots so far that have no record, each with whether it was missed."""
        if not self._delivery.every:
            return [*((each, True) for each in self._slots.unrecorded(slot - timedelta(seconds=1))), (slot, False)]
        begin, end = self._delivery.busy
        return [
            (each, (slot - each).total_seconds() > policy.LATE_S and not begin <= each.timestamp() <= end)
            for each in self._slots.unrecorded(slot)
        ]

    def _skip(self, slots: list[datetime], reason: str, job: str = "") -> None:
        """Record slots as skipped."""
        many = len(slots) - _MOST_MISSED + 1 if len(slots) > _MOST_MISSED else 1
        for number, slot in enumerate(slots[many - 1 :]):
            now, text = self._now(), slot.isoformat()
            why = f"{reason} ({many} slots until {text})" if many > 1 and number == 0 else reason
            record = self._slots.take(
                SlotRecord(key=key_of(slot), slot=text, state=SKIPPED, reason=why, taken=now, ended=now, keeper=job)
            )
            if record is not None and not reason.startswith("paused"):
                self._announce_skips(record)

    # --- One slot --------------------------------------------------------------------------------------------------------

    def _take(self, key: str, slot: datetime, cause: str, *notes: str) -> None:
        """Take a slot and decide about it, unless another process has taken it."""
        record = self._slots.take(
            SlotRecord(
                key=key,
                slot=slot.isoformat(),
                state=TAKEN,
                cause=cause,
                run=run_id_of(self._slots.schedule, key, slot),
                holder=self._holder,
                expires=self._clock.now() + self._delivery.lease_s,
                keeper=self._delivery.job,
                notes=notes,
                taken=self._now(),
            )
        )
        if record is not None:
            self._decide(record)

    def _decide(self, record: SlotRecord) -> None:
        """Start the run of a slot that this process holds, skip it, or let it wait for an earlier run."""
        slots = self._slots
        others = [slot for slot in slots.open if slot.key != record.key]
        active = [slot for slot in others if slot.state != WAITING]
        waiting = [slot for slot in others if slot.state == WAITING]
        causes = [slot.cause for slot in active]
        decision = policy.decide(slots.schedule.spec.overlap, active=causes, waiting=bool(waiting))
        # If it has a start time, a process that died was about to submit it, or has submitted it.
        if decision == "start" or record.started is not None:
            self._start(record)
        elif decision == "skip":
            earlier = (active or waiting)[-1]
            why = f"overlap: the run {earlier.run} is active" if active else f"overlap: the slot {earlier.slot} waits"
            self._end(record, SKIPPED, why)
        else:
            if decision == "replace":
                for slot in waiting:
                    self._end(slot, SKIPPED, f"overlap: replaced by {record.slot}")
                for slot in active:
                    self._cancel(slot)
            slots.change(record, state=WAITING, reason=f"waits for {active[-1].run}" if active else "")

    def _cancel(self, record: SlotRecord) -> None:
        try:
            self.runs.cancel(url_of(self.book.root, record))
        except PodliftError as error:
            if self._is_tried_again(error):
                # Otherwise the run would continue to its end.
                raise

    def _is_tried_again(self, error: Exception) -> bool:
        """True if the deliverer keeps its slot and repeats the step, because the error may be temporary."""
        return self._delivery.job != "" and isinstance(error, PodliftError) and may_pass(error)

    def _start(self, record: SlotRecord) -> None:
        """Check the preconditions and the budget, and submit the run."""
        slots, schedule = self._slots, self._slots.schedule
        success = slots.success if record.started is None else slots.records.get(record.success)
        notes = tuple[str, ...]()
        try:
            plan = plan_of(self.book.plan(schedule), schedule, record, success.moment if success else None)
            if record.started is None:
                reason, about = self._obstacle(record, plan, success)
                if reason:
                    self._end(record, SKIPPED, reason)
                    return
                # From now on, a process that takes the slot over submits the same run without deciding again.
                decided = slots.change(record, expires=self._clock.now() + self._delivery.lease_s, **about)
                if decided is None:
                    return
                record = decided
            self.runs.submit(plan)
        except (PodliftError, OSError) as error:
            if self._is_tried_again(error):
                raise
            text = " ".join(str(error).split())
            if not self._goes_on(record):
                self._end(record, State.FAILED.value, f"not started: {text}")
                return
            # It failed after the run had started.
            notes += (f"the submit failed: {text}",)
        _log.info("The schedule %s: the slot %s runs as %s", schedule.spec.name, record.slot, record.run)
        self._record_running(record, notes)

    def _goes_on(self, record: SlotRecord) -> bool:
        with suppress(PodliftError, OSError):
            state = self.runs.status(url_of(self.book.root, record)).state
            return not state.terminal or state is State.SUCCEEDED
        return False

    def _record_running(self, record: SlotRecord, notes: tuple[str, ...]) -> None:
        """Record that a run was submitted, over the record of a process that took the slot over without knowing of the run."""
        running = {"state": RUNNING, "reason": "", "ended": None, "keeper": self._delivery.job, "run": record.run}
        cost_usd = record.cost_usd
        for _ in range(_TRIES):
            if self._slots.change(record, **running, cost_usd=cost_usd, notes=(*record.notes, *notes)) is not None:
                return
            stored = self._slots.records.get(record.key)
            if stored is None or stored.state not in _OVERTAKEN:
                return
            record = stored

    def _obstacle(self, record: SlotRecord, plan: Plan, success: SlotRecord | None) -> tuple[str, dict[str, object]]:
        """Return why a slot is skipped, "" if it is not, and the fields of its record when it starts."""
        delivery, schedule = self._delivery, self._slots.schedule
        firing = preconditions.Firing(
            plan=plan,
            schedule=schedule.spec.name,
            slot=record.slot,
            now=delivery.created if delivery.job else self._clock.now(),
            success=success.slot if success else "",
            success_ended=success.ended if success else None,
            success_data=success.data if success else {},
        )
        reason, data_states = preconditions.unmet(schedule.spec.when, firing)
        cost_usd = spending.most_usd(plan)
        reason = reason or booking.booked(self.book, schedule, record, plan, delivery.price, self.runs)
        key = success.key if success else ""
        return reason, {"started": self._now(), "data": data_states, "cost_usd": cost_usd, "success": key}

    def _start_waiting(self) -> None:
        """Start the slot that has waited longest once no run is active; a keeper starts only its own slot."""
        slots, job = self._slots, self._delivery.job
        waiting = [record for record in slots.open if record.state == WAITING]
        is_free = waiting and len(waiting) == len(slots.open) and not slots.schedule.paused
        if is_free and (not job or waiting[0].keeper == job):
            leased_record = self._hold(waiting[0], job)
            if leased_record is not None:
                self._start(leased_record)

    # --- Open slots ------------------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """End the slots with an ended run, and take over the slots of dead processes."""
        job = self._delivery.job
        for record in self._slots.open:
            if record.state == RUNNING:
                self._follow(record)
            elif record.state == WAITING:
                self._keep_waiting(record)
            elif record.state == TAKEN and (self._is_abandoned(record) or (job and record.keeper == job)):
                # A keeper's own slot is taken if its container was restarted, or a service did not answer.
                self._take_over(record)

    def _is_abandoned(self, record: SlotRecord) -> bool:
        identity = record.holder.partition(" ")[0]
        dead = spawn.same_machine(identity) and not spawn.alive(identity)
        # Only a clock that was ahead writes a lease longer than the longest one.
        return dead or not -SERVER_LEASE_S - TOLERANCE_S < self._clock.now() - record.expires <= 0

    def _hold(self, record: SlotRecord, keeper: str) -> SlotRecord | None:
        """Take a slot over; None if another process was faster."""
        expires = self._clock.now() + self._delivery.lease_s
        return self._slots.change(record, state=TAKEN, holder=self._holder, expires=expires, keeper=keeper)

    def _take_over(self, record: SlotRecord) -> None:
        """Decide about a slot that was taken and not started; for a keeper, one of an earlier delivery was missed."""
        job = self._delivery.job
        mine = not job or job == record.keeper or record.key == self._key
        # Another keeper's slot stays its own: this one neither starts it after a restart nor resumes its run.
        leased_record = self._hold(record, job if mine else record.keeper)
        if leased_record is None:
            return
        if mine:
            name = self._slots.schedule.spec.name
            _log.warning("The schedule %s: the slot %s was left by a killed process", name, record.slot)
            self._decide(leased_record)
            return
        try:
            self.runs.status(url_of(self.book.root, leased_record))
            self._slots.change(leased_record, state=RUNNING)
        except RunNotFoundError:
            self._end(leased_record, SKIPPED, f"{MISSED}: its keeper ended before it started the run")

    def _keep_waiting(self, record: SlotRecord) -> None:
        """Renew the hold on a waiting slot; end one that no process holds, because the slots of keepers would wait for it."""
        delivery, schedule, now = self._delivery, self._slots.schedule, self._clock.now()
        if record.keeper != delivery.job:
            if delivery.job and self._is_abandoned(record):
                why = "its keeper ended" if record.keeper else "no server was there"
                self._end(record, SKIPPED, f"{MISSED}: {why} while it waited")
        elif schedule.paused and delivery.job:
            self._end(record, SKIPPED, f"paused: {schedule.paused}")
        elif record.expires - now < delivery.lease_s / 2 or self._is_abandoned(record):
            self._slots.change(record, holder=self._holder, expires=now + delivery.lease_s)

    def _delivered_again(self, record: SlotRecord) -> bool:
        """Note a delivery of a slot that another process holds; if that process died before the run began, replace it."""
        if record.state == TAKEN:
            if self._is_abandoned(record):
                self._take_over(record)
            return True
        schedule, text = self._slots.schedule, again(record, self._delivery)
        self.book.note(schedule, record.key, text)
        _log.info("The schedule %s: the slot %s was %s: nothing to do", schedule.spec.name, record.slot, text)
        return False

    def _follow(self, record: SlotRecord) -> None:
        """Record the end of a run; a lost run is resumed by its own deliverer."""
        url, limited = url_of(self.book.root, record), self._slots.schedule.spec.max_cost_usd_per_month is not None
        try:
            status = self.runs.status(url)
        except RunNotFoundError:
            self._end(record, State.LOST.value, "the run was removed")
            return
        if not status.state.terminal:
            return
        # A resume begins the time limit again, which the month has not booked.
        billed = limited and record.key in self.book.bookings(self._slots.schedule, record.slot[:7])[0]
        mine, stopped = record.keeper == self._delivery.job, status.state in (State.LOST, State.CHECKPOINTED)
        owed = self._owed.pop(record.key, 0) == record.resumes > 0
        if mine and not billed and stopped and (owed or record.resumes < _MOST_RESUMES):
            counted = self._slots.change(record, resumes=record.resumes + (not owed))
            # Without it, another process has resumed the run.
            if counted is None or self._resumed(url, counted):
                return
            record = counted
        reason = status.reason.value if status.failure is None else f"{status.reason.value}: {status.failure.message}"
        self._end(record, status.state.value, reason, status)

    def _resumed(self, url: str, record: SlotRecord) -> bool:
        """Resume a run; False if that is impossible. An outage does not count, and the next step tries again."""
        try:
            self.runs.resume(url)
        except PodliftError as error:
            if may_pass(error):
                # Not in the record, which the outage may keep from being written.
                self._owed[record.key] = record.resumes
                raise
            _log.warning("The run %s could not be resumed: %s", record.run, error)
            # A user, or a process that has read the record since, may have resumed it.
            return not self.runs.status(url).state.terminal
        return True

    # --- Ends and notices ------------------------------------------------------------------------------------------------

    def _end(self, record: SlotRecord, state: str, reason: str, status: Status | None = None) -> None:
        """Record the end of a slot, send its notices, and pause the schedule after failures."""
        # A service with a clock that is ahead must not make a run longer than it was.
        since = status.since + (self._ahead_s or 0.0) if status and status.since else float("inf")
        ended = min(since, self._now())
        run = record.run if status or record.started else ""
        # An unknown cost keeps its upper bound.
        cost_usd = status.spent_usd if status else record.cost_usd if state == State.LOST.value else None
        registered = status.registered if status else None
        about = {"state": state, "reason": reason, "ended": ended, "run": run, "cost_usd": cost_usd}
        after = self._slots.change(record, registered=registered, **about)
        if after is None:
            return
        _log.info("The schedule %s: the slot %s: %s %s", self._slots.schedule.spec.name, record.slot, state, reason)
        if state == SKIPPED:
            self._announce_skips(after)
        elif state in FAILED:
            self._announce(after, "failed", f"the slot {after.slot} failed: {after.reason}")
            self._pause_if_failing(after)
        elif registered is not None and registered.outcome in ("promoted", "asks"):
            self._announce(after, registered.outcome, str(registered))

    def _announce_skips(self, record: SlotRecord) -> None:
        each, count = self._slots.schedule.spec.notify_skips, self._slots.skipped_until(record)
        if each and count and count % each == 0:
            text = f"{count} slots in a row were skipped; the last one: {record.reason}"
            self._announce(record, "skipped", text)

    def _pause_if_failing(self, record: SlotRecord) -> None:
        """Pause the schedule after failures, and its trigger. Without the right to, the record ends the next keepers early."""
        schedule, failures = self._slots.schedule, self._slots.failures
        name, most = schedule.spec.name, schedule.spec.pause_after_failures
        if not most or failures < most or schedule.paused:
            return
        why = f"{counted(failures, 'failure')} in a row"
        self._slots.schedule = self.book.change(name, paused=why)
        if schedule.trigger:
            try:
                self._pause_trigger(schedule, self._clock)
            except PodliftError as error:
                _log.warning("The trigger of the schedule %s still fires, and its slots are skipped: %s", name, error)
        self._announce(record, "paused", f"paused after {why}. Next: podlift schedule unpause {name}")

    def _announce(self, record: SlotRecord, event: str, text: str) -> None:
        spec, registered = self._slots.schedule.spec, record.registered
        notice = Notice(
            schedule=spec.name,
            event=event,
            slot=record.slot,
            state=record.state,
            reason=record.reason,
            run=record.run,
            text=f"podlift schedule {spec.name}: {text}",
            model=registered.model if registered else "",
            version=registered.version if registered else 0,
        )
        self._notifier.send(spec.notify, notice)


def again(record: SlotRecord, delivery: Delivery) -> str:
    """Return the note about a delivery of a slot that has its record."""
    late = _lateness(record.moment, delivery)
    when = datetime.fromtimestamp(delivery.created, record.moment.tzinfo).isoformat(timespec="seconds")
    return (
        f"delivered {'again ' if record.keeper else ''}at {when}{f', {late}' if late else ''}, by the job {delivery.id}"
    )


def _lateness(slot: datetime, delivery: Delivery) -> str:
    """Return how late a slot was delivered, "" if it was in time or a server delivered it, which does so when it can."""
    late_s = delivery.created - slot.timestamp()
    return f"{duration(late_s)} after its slot: late, or by hand" if delivery.job and late_s > policy.LATE_S else ""
