"""The journal of a sweep for readers, which write nothing; and for a journal with damaged objects, the rest of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ..errors import CorruptObjectError, CorruptRunError, MissingError
from ..storage.parallel import in_parallel
from ..storage.store import Store
from .journal import Log, StoreJournal
from .records import SweepRecord, journal_prefix
from .study import DIRECTIONS

_CREATE_STUDY, _CREATE_TRIAL = 0, 4


class ReadJournal(StoreJournal):
    """The journal of a sweep that is only read."""

    def __init__(self, store: Store, record: SweepRecord) -> None:
        super().__init__(store, journal_prefix(record))

    def append_logs(self, logs: list[Log]) -> None:
        raise MissingError(f"There is no journal yet below {self._store.url}/{self._prefix}.")


class MendedJournal(ReadJournal):
    """A journal at one moment, without its damaged objects. A trial is created by an object: a damaged one keeps its number."""

    def __init__(self, store: Store, record: SweepRecord) -> None:
        super().__init__(store, record)
        self._record = record
        self._mended = [*self._all(in_parallel(self._intact, self._keys()))]

    def read_logs(self, log_number_from: int) -> Iterable[Log]:
        return self._mended[log_number_from:]

    def _intact(self, key: str) -> list[Log] | None:
        try:
            return self._part(key)
        except (CorruptObjectError, CorruptRunError):
            return None

    def _all(self, parts: Sequence[list[Log] | None]) -> Iterator[Log]:
        spec, about = self._record.spec, {"worker_id": ""}
        yield {**about, "op_code": _CREATE_STUDY, "study_name": spec.name, "directions": [DIRECTIONS[spec.mode].value]}
        damaged = trials = 0
        for part in parts:
            damaged += part is None
            for log in part or ():
                is_trial = log["op_code"] == _CREATE_TRIAL
                needed = _number(log) if is_trial else log.get("trial_id", -1) + 1
                while trials < needed and damaged:
                    attributes = {"run": self._record.run_id(trials), "why": "a part of its record is damaged"}
                    yield {
                        **about,
                        "op_code": _CREATE_TRIAL,
                        "study_id": 0,
                        "datetime_start": None,
                        "user_attrs": attributes,
                    }
                    trials, damaged = trials + 1, damaged - 1
                yield log
                trials += is_trial


def _number(log: Log) -> int:
    """Return the number of a new trial, which the id of its run has."""
    return int(str(log["user_attrs"]["run"]).rsplit("-", 2)[1])
