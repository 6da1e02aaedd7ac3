"""The loop of `podlift schedule serve`: it delivers every slot that is due, of all schedules of a root."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress

from ..backends.deliveries import Delivery
from ..clock import Clock
from ..errors import PodliftError
from ..logs import logger
from ..process import spawn
from ..process.heartbeats import Heart
from .firing import SlotMachine
from .notices import Notifier
from .records import HEARTBEAT, Book, utc
from .runs import LocalRuns, Runs

_log = logger("schedules")
POLL_S = 5.0


class Server:
    """Serves the schedules of a root. Several servers of one root are harmless."""

    def __init__(self, root: str, clock: Clock, runs: Runs | None = None, notifier: Notifier | None = None) -> None:
        self._book, self._clock = Book(root), clock
        self._runs: Runs = runs or LocalRuns(clock)
        self._notifier = notifier or Notifier(clock)
        self._machines: dict[str, SlotMachine] = {}
        self._busy = (0.0, 0.0)
        self._warned: dict[str, str] = {}
        # Of several servers in one process, each has its heartbeats.
        process = f"{spawn.identity(os.getpid())}/{secrets.token_hex(4)}"
        self._heart = Heart(self._book.store, HEARTBEAT, process, clock)

    def serve(self) -> None:
        """Fire the slots that are due, until the process ends."""
        try:
            while True:
                self._beat()
                due = self.tick()
                self._clock.sleep(max(0.0, min(due - self._clock.now(), POLL_S)))
        finally:
            self._beat(ended=True)

    def _beat(self, *, ended: bool = False) -> None:
        """Let the root know that it is served, from time to time."""
        with suppress(PodliftError, OSError):
            self._heart.beat(ended=ended)

    def serve_once(self) -> None:
        """Fire the slots that are due now, and wait for the notifications."""
        self.tick()
        self.settle()

    def settle(self) -> None:
        """Wait until the notifications have arrived, or were given up."""
        self._notifier.settle()

    def tick(self) -> float:
        """Fire the slots that are due now, and return the unix time of the next one."""
        begin, steady, due = self._clock.now(), self._clock.monotonic(), float("inf")
        delivery = Delivery(created=begin, every=True, busy=self._busy)
        names = list[str]()
        try:
            names = self._book.names()
        except (PodliftError, OSError) as error:
            self._warn("", error)
        for name in names:
            try:
                due = min(due, self._serve(name, delivery))
            except (PodliftError, OSError) as error:
                self._warn(name, error)
        # By the monotonic clock: while it was busy, the other one may have been set.
        self._busy = (begin, begin + self._clock.monotonic() - steady)
        return due

    def _serve(self, name: str, delivery: Delivery) -> float:
        """Deliver the slots of a schedule that are due, and return the time of its next one."""
        schedule = self._book.read(name)
        if schedule.trigger:
            # It is started by the service of its backend.
            return float("inf")
        if schedule.id not in self._machines:
            self._machines[schedule.id] = SlotMachine(self._book, self._clock, self._runs, self._notifier)
        self._machines[schedule.id].step(schedule, delivery)
        coming = next(schedule.spec.slots.after(utc(delivery.created)), None)
        return coming.timestamp() if coming else float("inf")

    def _warn(self, name: str, error: Exception) -> None:
        """Log the problem of a schedule, or of all of them, once until it changes."""
        text = str(error)
        if self._warned.get(name) != text:
            self._warned[name] = text
            _log.warning("%s: %s", f"The schedule {name}" if name else "The schedules", text)
