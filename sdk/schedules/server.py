"""The loop of `podlift schedule serve`: it delivers every slot that is due, and drives the sweeps of clouds, of a root."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Protocol

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


class Sweeps(Protocol):
    """The sweeps of a root, for its server."""

    def names(self) -> list[str]:
        """Return the sweeps that may need a driver."""

    def serve(self, name: str) -> float:
        """Take the next steps of a sweep, unless another process drives it, and return the unix time of the next ones."""

    def close(self) -> None:
        """Stop driving; the runs continue."""


class Server:
    """Serves the schedules of a root, and its sweeps if there are some. Several servers of one root are harmless."""

    def __init__(
        self,
        root: str,
        clock: Clock,
        runs: Runs | None = None,
        notifier: Notifier | None = None,
        sweeps: Sweeps | None = None,
    ) -> None:
        self._book, self._clock, self._sweeps = Book(root), clock, sweeps
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
            self._close()

    def _close(self) -> None:
        """Leave the sweeps to other drivers."""
        if self._sweeps is not None:
            with suppress(PodliftError, OSError):
                self._sweeps.close()

    def _beat(self, *, ended: bool = False) -> None:
        """Let the root know that it is served, from time to time."""
        with suppress(PodliftError, OSError):
            self._heart.beat(ended=ended)

    def serve_once(self) -> None:
        """Fire the slots that are due now, and wait for the notifications."""
        self.tick()
        self.settle()
        self._close()

    def settle(self) -> None:
        """Wait until the notifications have arrived, or were given up."""
        self._notifier.settle()

    def tick(self) -> float:
        """Fire the slots that are due now, and return the unix time of the next one."""
        begin, steady = self._clock.now(), self._clock.monotonic()
        delivery = Delivery(created=begin, every=True, busy=self._busy)
        due = self._all("schedule", self._book.names, partial(self._serve, delivery=delivery))
        if self._sweeps is not None:
            due = min(due, self._all("sweep", self._sweeps.names, self._sweeps.serve))
        # By the monotonic clock: while it was busy, the other one may have been set.
        self._busy = (begin, begin + self._clock.monotonic() - steady)
        return due

    def _all(self, noun: str, names: Callable[[], list[str]], serve: Callable[[str], float]) -> float:
        """Serve all of a kind, and return the time at which the first one is due again. A damaged one stops no other."""
        due, known = float("inf"), list[str]()
        try:
            known = names()
        except (PodliftError, OSError) as error:
            self._warn(f"The {noun}s", error)
        for name in known:
            try:
                due = min(due, serve(name))
            except (PodliftError, OSError) as error:
                self._warn(f"The {noun} {name}", error)
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

    def _warn(self, what: str, error: Exception) -> None:
        """Log the problem of a schedule or a sweep, or of all of them, once until it changes."""
        text = str(error)
        if self._warned.get(what) != text:
            self._warned[what] = text
            _log.warning("%s: %s", what, text)
