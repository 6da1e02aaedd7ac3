"""The slot of one delivery, kept until its run has ended: by a keeper in its container, or in the process of a command."""

from __future__ import annotations

import base64
import os
import zoneinfo
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from .. import backends
from ..backends.deliveries import Delivery
from ..clock import Clock
from ..errors import InputError, MissingError
from ..storage import secret_manager
from .firing import SlotMachine
from .notices import Notifier
from .records import REMOVED, Book, ScheduleRecord, utc
from .runs import KeptRuns
from .slots import Cron


class KeptSlot:
    """Keeps the slot of a delivery, made once by `deliver(schedule)`. `id` distinguishes successive schedules of a name."""

    def __init__(self, machine: SlotMachine, name: str, id: str, deliver: Callable[[ScheduleRecord], Delivery]) -> None:
        self._machine, self._name, self._id, self._deliver = machine, name, id, deliver
        self._delivery: Delivery | None = None
        self.title = f"The schedule {name}"

    def step(self) -> bool:
        """Take the next step for the slot."""
        try:
            schedule = self._machine.book.read(self._name)
            if schedule.id != self._id or (self._machine.running and schedule.paused == REMOVED):
                raise InputError(
                    f"This job belongs to an earlier schedule of the name {self._name!r}, which was removed. Next: remove its "
                    "trigger (podlift schedule list)."
                )
        except InputError:
            if not self._machine.running:
                raise
            # The schedule was removed, and its run is active: no other process would submit the run's next job.
            return not self._machine.runs.status(self._machine.running).state.terminal
        self._delivery = self._delivery or self._deliver(schedule)
        try:
            return self._machine.step(schedule, self._delivery)
        except MissingError:
            # Records disappear while the schedule is being removed, which the next step sees.
            if not self._machine.running:
                raise
            return True

    def give_up(self) -> None:
        """Skip the slot if it still waits; do nothing for a removed schedule."""
        schedule = self._machine.book.find(self._name)
        if self._delivery is not None and schedule is not None and schedule.id == self._id:
            self._machine.give_up(schedule)

    def close(self) -> None:
        """Wait for the notices, and stop waiting for the run, which continues."""
        self._machine.close()


def of_container(spec: Mapping[str, Any], home: str, clock: Clock) -> KeptSlot:
    """Return the slot that the container of a keeper was started for, by the launch spec of the schedule's trigger."""
    _add_zone(spec.get("zone") or {}, Path(home, "zoneinfo"))
    book = Book(spec["root"])

    def deliver(schedule: ScheduleRecord) -> Delivery:
        service, plan = backends.load(schedule.backend).services.deliveries, book.plan(schedule)
        if service is None:
            raise InputError(
                f"Nothing delivers slots for the backend {schedule.backend!r}. Next: podlift schedule serve."
            )
        # Asked while the slot is held: an error is in its record.
        price = partial(service.keeper_price, plan, schedule.spec.overlap)
        return with_slot(replace(service.delivery(plan, os.environ, clock), price=price), spec)

    machine = SlotMachine(book, clock, KeptRuns(clock), Notifier(clock, secret=secret_manager.value))
    return KeptSlot(machine, spec["schedule"], spec["id"], deliver)


def _add_zone(zone: Mapping[str, str], folder: Path) -> None:
    """Add time zones to an image, which may have none: {name: data in base64}."""
    for name, data in zone.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(data))
    zoneinfo.reset_tzpath([*zoneinfo.TZPATH, str(folder)])


def with_slot(delivery: Delivery, spec: Mapping[str, Any]) -> Delivery:
    """Return the delivery with its slot: the nearest slot of the expression in the launch spec, which delivered it."""
    if delivery.by_hand or delivery.slot is not None or "cron" not in spec:
        return delivery
    slot = Cron(spec["cron"], spec["time_zone"]).nearest(utc(delivery.created))
    return delivery if slot is None else replace(delivery, slot=slot.timestamp())
