"""What the container of a schedule's keeper runs: it serves the slot that was delivered, until its run has ended.

It starts from the runtime archive, and needs nothing of the machine that created the schedule.
"""

from __future__ import annotations

import base64
import os
import zoneinfo
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypedDict, TypeVar

from .. import backends, logs
from ..backends.deliveries import Deliveries, Delivery
from ..clock import Clock, SystemClock
from ..errors import InputError, PodliftError, StoreError, StoreUnavailableError, may_pass
from ..job.plan import Plan
from ..logs import logger
from ..status import EXIT_DONE, EXIT_INFRASTRUCTURE, EXIT_INPUT
from ..storage import secret_manager
from ..storage.retry import Outage
from .firing import KeptRuns
from .keeper_server import KeeperServer
from .notices import Notifier
from .records import Book, utc
from .slots import Cron

_log = logger("schedules")
_T = TypeVar("_T")
_POLL_S, _LONGEST_POLL_S = 0.5, 5.0


class KeeperSpec(TypedDict, total=False):
    """The part of the launch spec that is read here."""

    root: str
    schedule: str
    id: str
    keep_for_s: float
    zone: Mapping[str, str]  # data of time zones by name, in base64
    cron: str  # the expression by which the slots were delivered
    time_zone: str


def main(spec: KeeperSpec, *, home: str) -> int:
    """Serve the slot, and return the exit code of the container."""
    logs.start(errors_apart=True)
    # Copies of runs, and the bundle.
    os.environ["XDG_CACHE_HOME"] = str(Path(home, "cache"))
    clock = SystemClock()
    runs = KeptRuns(clock)
    try:
        _add_zone(spec.get("zone") or {}, Path(home, "zoneinfo"))
        book = Book(spec["root"])
        plan = read_plan(book, spec, clock)
        service = backends.load(plan.backend).services.deliveries
        if service is None:
            raise InputError(f"Nothing delivers slots for the backend {plan.backend!r}. Next: podlift schedule serve.")
        server = KeeperServer(spec["root"], clock, runs, Notifier(clock, secret=secret_manager.value), service)
        keep(server, plan, service, spec, clock)
    except InputError as error:
        _log.error(str(error))
        return EXIT_INPUT
    except PodliftError as error:
        _log.error(str(error))
        return EXIT_INFRASTRUCTURE
    finally:
        runs.close()
    return EXIT_DONE


def _add_zone(zone: Mapping[str, str], folder: Path) -> None:
    """Add the data of time zones to those of the image, which may have none: {name: data in base64}."""
    for name, data in zone.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(data))
    zoneinfo.reset_tzpath([*zoneinfo.TZPATH, str(folder)])


def read_plan(book: Book, spec: KeeperSpec, clock: Clock) -> Plan:
    """Return the plan of the firings; an outage of the bucket is waited for."""
    name, until = spec["schedule"], clock.monotonic() + spec["keep_for_s"]
    outage = _outage(name, clock)
    while True:
        plan = outage.outlive(lambda: _asked(lambda: book.plan(book.read(name))))
        if plan is not None:
            return plan
        if clock.monotonic() > until:
            raise StoreUnavailableError(str(outage.error))
        clock.sleep(outage.pause_s)


def _outage(name: str, clock: Clock) -> Outage:
    return Outage(clock, f"The schedule {name} cannot be served", "It is tried again.")


def keep(server: KeeperServer, plan: Plan, service: Deliveries, spec: KeeperSpec, clock: Clock) -> None:
    """Serve the delivery until nothing is left to do, or the keeper's time is over; an outage is waited for."""
    name, began = spec["schedule"], clock.monotonic()
    until = began + spec["keep_for_s"]
    outage = _outage(name, clock)
    delivery: Delivery | None = None
    try:
        while clock.monotonic() < until:
            with outage.asking():
                delivery = delivery or _with_slot(service.delivery(plan, os.environ, clock), spec)
                if not _asked(partial(server.step, name, spec["id"], delivery)):
                    return
            # What is over soon is not waited for, and what takes long is not asked for often.
            pause_s = min(_LONGEST_POLL_S, _POLL_S + (clock.monotonic() - began) / 20)
            clock.sleep(max(pause_s, outage.pause_s))
        _log.info("the keeper's time is over; the run goes on without it")
        server.give_up(name)
    finally:
        server.settle()


def _with_slot(delivery: Delivery, spec: KeeperSpec) -> Delivery:
    """Return a delivery that names its slot: that of the expression by which it was delivered."""
    if delivery.by_hand or delivery.slot is not None or "cron" not in spec:
        return delivery
    slot = Cron(spec["cron"], spec["time_zone"]).nearest(utc(delivery.created))
    return delivery if slot is None else replace(delivery, slot=slot.timestamp())


def _asked(call: Callable[[], _T]) -> _T:
    """Call; a store that fails for no known reason counts as one that does not answer."""
    try:
        return call()
    except StoreError as error:
        if may_pass(error):
            raise StoreUnavailableError(str(error)) from error
        raise
