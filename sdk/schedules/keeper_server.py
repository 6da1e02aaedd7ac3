"""Serves one slot of one schedule, for one delivery of a cloud's trigger: what a keeper does.

The rules are those of a server. A keeper differs in that it lives for one slot, that the time of the delivery is the service's,
that the same slot may be delivered again, and that its run has no other process that waits for it.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from ..backends.deliveries import Deliveries, Delivery
from ..clock import Clock
from ..errors import InputError, PodliftError, RunNotFoundError
from ..hardware.pricing import Price
from ..job.plan import Plan
from ..logs import logger
from ..text import duration
from . import policy, preconditions
from .firing import Runs, url_of
from .notices import Notifier
from .recent_slots import RecentSlots
from .records import RUNNING, SKIPPED, TAKEN, WAITING, ScheduleRecord, SlotRecord, key_of, slot_of
from .server import NO_KEEPER, Server

_log = logger("schedules")
# Claims of jobs have the same: a keeper that was killed is replaced within two minutes.
LEASE_S = 60.0
_UNSTARTED = "missed: its keeper ended before it started the run"


class KeeperServer(Server):
    """The server of a delivery. `step` may be called again after any failure, also by another process of the same job."""

    lease_s = LEASE_S

    def __init__(self, root: str, clock: Clock, runs: Runs, notifier: Notifier, service: Deliveries) -> None:
        super().__init__(root, clock, runs, notifier)
        self._service = service
        self._created, self._key = 0.0, ""
        self._ahead_s = 0.0  # at least this much, the clock of this machine is behind that of the service
        self._held = False  # this process has had the slot
        self._running = ""  # URL of the run that it waits for

    def step(self, schedule_name: str, schedule_id: str, delivery: Delivery) -> bool:
        """Do what is due for the slot of a delivery; False once there is nothing left to do."""
        self.keeper = delivery.job
        try:
            schedule = self._own(schedule_name, schedule_id)
        except InputError:
            if not self._running:
                raise
            # It was removed, and its run goes on: who else would submit its next job?
            return not self._runs.status(self._running).state.terminal
        key, slot = slot_of(schedule, delivery)
        if not self._created:
            self._ahead_s = max(0.0, delivery.created - self._clock.now())
        self._created, self._key = delivery.created, key
        recent = self._remembered(schedule, slot)
        record = recent.records.get(key)
        if record is None:
            self._skip_abandoned(recent)
            self._refresh(recent)
            # A failure may have paused it.
            recent.schedule = self._book.read(schedule_name)
            self._begin(recent, key, slot, delivery)
            record = recent.records[key]
        if record.keeper == self.keeper:
            self._held = True
            return self._go_on(recent, record)
        # Another one has taken it over while this process was cut off.
        return not self._held and self._delivered_again(recent, record, delivery)

    def _own(self, name: str, schedule_id: str) -> ScheduleRecord:
        schedule = self._book.read(name)
        if schedule.id != schedule_id:
            raise InputError(
                f"This job belongs to an earlier schedule of the name {name!r}, which was removed. Next: remove its trigger "
                "(podlift schedule list)."
            )
        return schedule

    def _skip_abandoned(self, recent: RecentSlots) -> None:
        """End slots that wait for the end of a run, and whose keeper is gone: they would let later slots wait, too."""
        for record in recent.open:
            if record.state == WAITING and self._is_abandoned(record):
                self._end(recent, record, SKIPPED, "missed: its keeper ended while it waited")

    def _begin(self, recent: RecentSlots, key: str, slot: datetime, delivery: Delivery) -> None:
        """Take the slot and fire it, after those that were missed before it."""
        if delivery.by_hand:
            self._fire(recent, key, slot, "manual")
            return
        missed = self._unrecorded(recent, slot - timedelta(seconds=1))
        if recent.schedule.paused:
            self.record_skipped(recent, missed, f"paused: {recent.schedule.paused}")
            self.record_skipped(recent, [slot], f"paused: {recent.schedule.paused}", keeper=self.keeper)
            return
        chosen = policy.caught_up(recent.spec.missed, missed)
        self.record_skipped(recent, missed[:-1] if chosen else missed, NO_KEEPER)
        if chosen:
            self._fire(recent, key_of(chosen), chosen, "catch_up")
        late = _lateness(slot, delivery)
        self._fire(recent, key, slot, "schedule", *([f"delivered {late}"] if late else []))

    def _delivered_again(self, recent: RecentSlots, record: SlotRecord, delivery: Delivery) -> bool:
        """Note a delivery of a slot that another keeper has; if that one is dead before its run began, take its place."""
        if record.state == TAKEN:
            if self._is_abandoned(record):
                self._take_over(recent, record)
            return True
        text = again(record, delivery)
        self._book.note(recent.schedule, record.key, text)
        _log.info("The schedule %s: the slot %s was %s: nothing to do", recent.spec.name, record.slot, text)
        return False

    def _go_on(self, recent: RecentSlots, record: SlotRecord) -> bool:
        """Follow the slot of this keeper to its end."""
        if record.state == TAKEN:
            # The container was started again, or a service did not answer.
            self._take_over(recent, record)
        self._refresh(recent)
        record = recent.records[record.key]
        if record.state == WAITING and recent.schedule.paused:
            self._end(recent, record, SKIPPED, f"paused: {recent.schedule.paused}")
        elif record.state == WAITING and record.expires - self._clock.now() < LEASE_S / 2:
            self._changed(recent, record, expires=self._clock.now() + LEASE_S)
        first = next((slot for slot in recent.open if slot.state == WAITING), None)
        if first is not None and first.keeper == self.keeper:
            self._start_waiting(recent)
        mine = [slot for slot in recent.open if slot.keeper == self.keeper]
        self._running = next((url_of(self._root, slot) for slot in mine if slot.state == RUNNING), "")
        return bool(mine)

    def give_up(self, schedule_name: str) -> None:
        """Record that the keeper's time is over: a slot that waits is skipped, and runs go on without it."""
        schedule = self._book.read(schedule_name)
        recent = self._remembered(schedule, self._now())
        for record in recent.open:
            if record.keeper == self.keeper and record.state == WAITING:
                self._end(
                    recent,
                    record,
                    SKIPPED,
                    "overlap: the keeper's time was over before the earlier run ended",
                )

    def _take_over(self, recent: RecentSlots, record: SlotRecord) -> None:
        """Take over a slot that was taken and not started; an earlier one than that of this delivery was missed."""
        if record.key == self._key or record.keeper == self.keeper:
            super()._take_over(recent, record)
            return
        held = self._hold(recent, record)
        if held is None:
            return
        try:
            self._runs.status(url_of(self._root, held))
            self._changed(recent, held, state=RUNNING)
        except RunNotFoundError:
            self._end(recent, held, SKIPPED, _UNSTARTED)

    def _served(self, time: float) -> float:
        """Return a time of this machine by the service's clock: nothing begins before it was delivered."""
        return time + self._ahead_s

    def _keeper_price(self, plan: Plan, overlap: str) -> Price | None:
        return self._service.keeper_price(plan, overlap)

    def _firing(
        self, recent: RecentSlots, record: SlotRecord, plan: Plan, success: SlotRecord | None
    ) -> preconditions.Firing:
        return replace(super()._firing(recent, record, plan, success), now=self._created)

    def _pause(self, schedule: ScheduleRecord, why: str) -> None:
        """Pause the trigger, too. Without the right to, the record ends the next keepers early."""
        super()._pause(schedule, why)
        if schedule.trigger:
            try:
                self._service.pause(schedule.trigger, self._clock)
            except PodliftError as error:
                _log.warning(
                    "The trigger of the schedule %s still fires, and its slots are skipped: %s",
                    schedule.spec.name,
                    error,
                )


def again(record: SlotRecord, delivery: Delivery) -> str:
    """Return the note about a delivery of a slot that has its record."""
    late = _lateness(record.moment, delivery)
    when = datetime.fromtimestamp(delivery.created, record.moment.tzinfo).isoformat(timespec="seconds")
    return (
        f"delivered {'again ' if record.keeper else ''}at {when}{f', {late}' if late else ''}, by the job {delivery.id}"
    )


def _lateness(slot: datetime, delivery: Delivery) -> str:
    late_s = delivery.created - slot.timestamp()
    return f"{duration(late_s)} after its slot: late, or by hand" if late_s > policy.LATE_S else ""
