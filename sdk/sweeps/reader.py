"""Reads the sweeps of a root again and again, for a page: it writes nothing, and asks for new records only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .. import ids
from ..clock import Clock
from ..errors import CorruptObjectError, CorruptRunError, InputError, MissingError, PodliftError
from ..records.sync.index import in_parallel
from . import creation, handle
from .handle import SweepView
from .records import Book, SweepRecord

if TYPE_CHECKING:
    from .study import Study, Trial

# Errors that damaged records cause; others mean that the root cannot be read now.
_DAMAGE = (CorruptObjectError, CorruptRunError, MissingError, LookupError, TypeError, ValueError, AttributeError)


@dataclass(frozen=True, kw_only=True)
class SeenSweep:
    """A sweep, or why it cannot be read; `problems` names damaged parts of a sweep that is readable otherwise."""

    name: str
    view: SweepView | None = None
    problems: Sequence[str] = ()

    @property
    def has_ended(self) -> bool:
        return self.view is not None and self.view.end is not None


class Reader:
    """The sweeps of one root."""

    def __init__(self, root: str, clock: Clock) -> None:
        self._book, self._clock = Book(root), clock
        self._studies = dict[str, "Study"]()
        self._damage = dict[str, str]()
        # By name: the generation of its specification, whether it had ended at an earlier look already, and the sweep.
        self._known = dict[str, tuple[str, bool, SeenSweep]]()
        self._sweeps = dict[str, str]()  # by run

    def any(self) -> bool:
        """Return whether there is a sweep."""
        return bool(self._known) or any(True for _ in self._specs())

    def all(self) -> list[SeenSweep]:
        """Return the sweeps by name."""
        return in_parallel(lambda pair: self._seen(*pair), self._specs())

    def one(self, name: str) -> SeenSweep:
        """Return one sweep, or raise InputError with the nearest name."""
        try:
            return self._seen(name, self._book.store.stat(f"specs/{name}.json").generation)
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

    def _specs(self) -> Iterator[tuple[str, str]]:
        for stat in self._book.store.list("specs/"):
            if stat.key.endswith(".json"):
                yield stat.key.removeprefix("specs/").removesuffix(".json"), stat.generation

    def _seen(self, name: str, generation: str) -> SeenSweep:
        """Read a sweep, unless it had ended when it was read last and was not resumed since."""
        before = self._known.get(name)
        same = before is not None and before[0] == generation
        if before is not None and same and before[1]:
            return before[2]
        # Without Optuna no sweep can be read, but none is damaged.
        creation.check_installed()
        try:
            view = handle.read(self._book.root, name, self._clock, self._trials)
        except _DAMAGE as error:
            said = str(error) if isinstance(error, PodliftError) else repr(error)
            return SeenSweep(name=name, problems=[said])
        damage = self._damage.get(view.record.id)
        seen = SeenSweep(name=name, view=view, problems=[damage] if damage else [])
        # Trials are read before the end: the first reading with an end may lack something.
        self._known[name] = generation, same and before is not None and before[2].has_ended, seen
        return seen

    def _trials(self, record: SweepRecord) -> Sequence[Trial]:
        from .mended import MendedJournal, ReadJournal
        from .study import Study

        self._damage.pop(record.id, None)
        store, prefix = self._book.store, f"journals/{record.id}"
        try:
            if record.id not in self._studies:
                self._studies[record.id] = Study(store, record, ReadJournal(store, prefix))
            return self._studies[record.id].trials()
        except MissingError:
            return []  # it was created at this moment
        except (CorruptObjectError, CorruptRunError) as error:
            self._studies.pop(record.id, None)
            self._damage[record.id] = f"{error} The other trials are shown."
            return Study(store, record, MendedJournal(store, prefix, record)).trials()
