"""The records of sweeps: the specification, the plan of all trials, cancel requests, ends, and the heartbeat of the driver.

Below `<root>/sweeps`, in a Store. Trials are in Optuna's journal, see `journal.py`. Only the specification ends in .json:
`podlift remove` keeps everything that the JSON files of a root name, so it keeps the bundle of a sweep, but not its runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .. import ids
from ..errors import MissingError
from ..job.job import words_of
from ..job.layout import RootPaths
from ..process.heartbeats import Heartbeat, last_heartbeat
from ..records.named import NamedRecords, encoded
from ..storage.store import create, current
from .space import Parameter, Value

VERSION = 1
# A trial's run has the name of the sweep and a number.
MAX_NAME = ids.MAX_NAME - len("-00000")
DONE, CANCELLED, FAILED = "DONE", "CANCELLED", "FAILED"


@dataclass(frozen=True, kw_only=True)
class SweepSpec:
    """The user's specification of a sweep, without the job."""

    name: str
    space: dict[str, Parameter]
    metric: str
    mode: str
    trials: int
    parallel: int
    pruner: str = "none"
    sampler: str = "tpe"
    seed: int = 0
    max_cost_usd: float | None = None


@dataclass(frozen=True, kw_only=True)
class SweepRecord:
    """A sweep as it is stored. It names the bundle, which `podlift remove` therefore keeps."""

    id: str  # distinguishes successive sweeps of one name
    spec: SweepSpec
    bundle: str  # digest of the code
    plan: str  # key of the plan
    args: Any  # of the program, without the parameters
    created: float
    resumes: int = 0  # each has its own cancel request and end
    resumed: float = 0.0  # unix time of the last one
    version: int = VERSION

    def run_id(self, number: int) -> str:
        """Return the id of the run of a trial: always the same one."""
        name = f"{self.spec.name}-{number:03d}"
        return f"{name}-{ids.suffix_of(f'{name} {self.id}')}"


@dataclass(frozen=True, kw_only=True)
class End:
    """How a sweep ended: DONE, CANCELLED or FAILED, and why in a sentence."""

    state: str
    why: str = ""


def with_parameters(args: Any, params: Mapping[str, Value]) -> Any:
    """Return the arguments of a program with these parameters: keywords, or words at the end of its words."""
    if args is None or isinstance(args, dict):
        return {**(args or {}), **params}
    return [*args, *words_of(params)]


class Book(NamedRecords[SweepRecord]):
    """The sweeps of a root."""

    def __init__(self, root: str) -> None:
        super().__init__(root, RootPaths(root).sweeps, SweepRecord, "sweep")

    def end(self, record: SweepRecord) -> End | None:
        """Return the end of a sweep since its last resume; None for a sweep that continues."""
        key = _this("ends", record)
        try:
            return self.decoded(End, current(self.store, key)[0], key)
        except MissingError:
            return None

    def put_end(self, record: SweepRecord, end: End) -> None:
        create(self.store, _this("ends", record), encoded(end))

    def request_cancel(self, record: SweepRecord) -> None:
        create(self.store, _this("cancels", record), b"")

    def is_cancelled(self, record: SweepRecord) -> bool:
        """Return whether its cancellation was requested since the last resume."""
        try:
            self.store.stat(_this("cancels", record))
        except MissingError:
            return False
        return True

    def heartbeat(self, record: SweepRecord) -> Heartbeat:
        """Return the last heartbeat of its drivers."""
        return last_heartbeat(self.store, heartbeat_key(record))


def _this(kind: str, record: SweepRecord) -> str:
    return f"{kind}/{record.id}/{record.resumes}"


def heartbeat_key(record: SweepRecord) -> str:
    return f"drivers/{record.id}"


def journal_prefix(record: SweepRecord) -> str:
    return f"journals/{record.id}"
