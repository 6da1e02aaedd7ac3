"""The sweeps of a root for its server, `podlift schedule serve`: it drives sweeps on a cloud while no client does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..clock import Clock
from . import creation
from .reader import DAMAGE, damage_of
from .records import Book

if TYPE_CHECKING:
    from .driver import Driver, TrialRuns


class Drivers:
    """Drives each sweep of a root that no other process drives, if its runs are supervised elsewhere."""

    def __init__(self, root: str, clock: Clock, runs: TrialRuns | None = None) -> None:
        self._book, self._clock, self._runs = Book(root), clock, runs
        self._drivers = dict[str, "Driver"]()
        # Generations of specifications: at the last listing, and of sweeps that need no driver of a server.
        self._generations, self._done = dict[str, str](), dict[str, str]()

    def names(self) -> list[str]:
        self._generations = self._book.generations()
        return [name for name, generation in self._generations.items() if self._done.get(name) != generation]

    def serve(self, name: str) -> float:
        driver, goes_on = None, False
        try:
            driver = self._drivers.get(name) or self._driver(name)
            goes_on = driver is not None and driver.step() is None
        except DAMAGE as error:
            raise damage_of(error) from error
        finally:
            if not goes_on:
                self._end(name)
        return self._clock.now() + driver.poll_s if driver is not None and goes_on else float("inf")

    def close(self) -> None:
        for name in [*self._drivers]:
            self._end(name)

    def _driver(self, name: str) -> Driver | None:
        """Return a driver of a sweep; None if it has one, needs none, or is driven on the machine of its runs."""
        record = self._book.read(name)
        if self._book.end(record) is not None or self._book.plan(record).capabilities.supervised_here:
            self._done[name] = self._generations[name]
            return None
        if self._book.heartbeat(record).is_live(self._clock.now()):
            return None
        creation.check_installed()
        from .driver import Driver  # Optuna needs half a second

        driver = self._drivers[name] = Driver(self._book.root, name, self._clock, self._runs)
        return driver

    def _end(self, name: str) -> None:
        if (driver := self._drivers.pop(name, None)) is not None:
            driver.close()
