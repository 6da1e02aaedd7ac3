"""Reads the sweeps of a root, also again and again: it writes nothing, and asks for new records only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .. import ids
from ..clock import Clock
from ..errors import CorruptObjectError, CorruptRunError, InputError, MissingError, PodliftError
from ..job.plan import Plan
from ..storage.parallel import in_parallel
from . import creation
from .records import Book, End, SweepRecord

if TYPE_CHECKING:
    from .study import Study, Trial

# Errors that damaged records cause, also as Optuna meets them; others mean that the root cannot be read now.
DAMAGE = (
    CorruptObjectError, CorruptRunError, MissingError, LookupError, TypeError, ValueError, AttributeError, AssertionError,
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class SweepView:
    """A sweep at one moment: `sdk.Sweep("digits-a1b2").read().trials`."""

    record: SweepRecord
    plan: Plan  # of a trial
    trials: Sequence[Trial]  # by number, each with its curve
    best: Trial | None  # None before the first value
    end: End | None  # None for a sweep that continues
    driven: bool  # whether a process drives it
    log: str  # file of its last driver, "" without one

    @property
    def state(self) -> str:
        """DONE, CANCELLED or FAILED; RUNNING, or STOPPED without a driver: `sdk.Sweep("digits-a1b2").read().state`."""
        return self.end.state if self.end else "RUNNING" if self.driven else "STOPPED"


@dataclass(frozen=True, kw_only=True)
class SweepReading:
    """A sweep, or why it cannot be read; with both, a part is damaged, and the view has the other trials."""

    name: str
    view: SweepView | None = None
    damage: PodliftError | None = None

    def readable(self) -> SweepView:
        """Return the readable part, or raise the damage if there is none."""
        if self.view is None:
            raise self.damage or CorruptRunError(f"The sweep {self.name!r} cannot be read.")
        return self.view

    @property
    def problems(self) -> list[str]:
        return [str(self.damage)] if self.damage else []

    @property
    def has_ended(self) -> bool:
        return self.view is not None and self.view.end is not None


class Reader:
    """The sweeps of one root."""

    def __init__(self, root: str, clock: Clock) -> None:
        self._book, self._clock = Book(root), clock
        self._studies = dict[str, "Study"]()
        self._damage = dict[str, PodliftError]()
        # By name: the generation of its specification, whether it had ended when it was read before, and the sweep.
        self._readings = dict[str, tuple[str, bool, SweepReading]]()
        self._sweeps = dict[str, str]()  # by run

    def any(self) -> bool:
        """Return whether there is a sweep."""
        return bool(self._readings or self._book.names())

    def all(self) -> list[SweepReading]:
        """Return the sweeps by name."""
        return in_parallel(lambda pair: self._reading(*pair), self._book.generations().items())

    def one(self, name: str) -> SweepReading:
        """Return one sweep, or raise InputError with the nearest name."""
        try:
            return self._reading(name, self._book.store.stat(f"specs/{name}.json").generation)
        except (MissingError, InputError):
            self._book.read(name)
            raise

    def sweep_of(self, run: str) -> str:
        """Return the sweep of a run, "" for another run."""
        name, number = ids.trial_of(run)
        if name and run not in self._sweeps:
            try:
                record = self._book.find(name)
            except PodliftError:
                return ""  # the page of the run is whole without it
            self._sweeps[run] = name if record is not None and record.run_id(number) == run else ""
        return self._sweeps.get(run, "")

    def _reading(self, name: str, generation: str) -> SweepReading:
        """Read a sweep, unless it had ended when it was read last and was not resumed since."""
        before = self._readings.get(name)
        same = before is not None and before[0] == generation
        if before is not None and same and before[1]:
            return before[2]
        # Without Optuna no sweep can be read, but none is damaged.
        creation.check_installed()
        try:
            view = self._view(name)
        except DAMAGE as error:
            return SweepReading(name=name, damage=damage_of(error))
        reading = SweepReading(name=name, view=view, damage=self._damage.get(view.record.id))
        # Trials are read before the end: the first reading with an end may lack something.
        self._readings[name] = generation, same and before is not None and before[2].has_ended, reading
        return reading

    def _view(self, name: str) -> SweepView:
        """Return a sweep as it is now, from its records only."""
        from .study import COMPLETE, best_of

        record = self._book.read(name)
        trials = self._trials(record)
        valued = [trial for trial in trials if trial.value is not None]
        # A trial that was stopped early may have been lucky once.
        whole = [trial for trial in valued if trial.state == COMPLETE] or valued
        most = best_of(record.spec.mode, [trial.value for trial in whole])
        beat = self._book.heartbeat(record)
        return SweepView(
            record=record,
            plan=self._book.plan(record),
            trials=trials,
            best=next((trial for trial in whole if trial.value == most), None),
            end=self._book.end(record),
            driven=beat.is_live(self._clock.now()),
            log=beat.log,
        )

    def _trials(self, record: SweepRecord) -> Sequence[Trial]:
        from .mended import MendedJournal, ReadJournal
        from .study import Study

        self._damage.pop(record.id, None)
        store = self._book.store
        try:
            if record.id not in self._studies:
                self._studies[record.id] = Study(store, record, ReadJournal(store, record))
            return self._studies[record.id].trials()
        except MissingError:
            return []  # no driver has begun
        except DAMAGE as error:
            # The next look reads it from the beginning: Optuna has passed over what it could not apply.
            self._studies.pop(record.id, None)
            self._damage[record.id] = damage_of(error)
            return Study(store, record, MendedJournal(store, record)).trials()


def damage_of(error: Exception) -> PodliftError:
    return (
        error if isinstance(error, PodliftError) else CorruptRunError(f"A record of the sweep is damaged: {error!r}.")
    )
