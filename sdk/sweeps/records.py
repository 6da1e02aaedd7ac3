"""The records of sweeps: the specification, the plan of all trials, cancel requests, ends, and the heartbeat of the driver.

Below `<root>/sweeps`, in a Store. Trials are in Optuna's journal, see `journal.py`. Only the specification ends in .json:
`podlift remove` keeps everything that the JSON files of a root name, so it keeps the bundle of a sweep, but not its runs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

from .. import ids
from ..errors import ConflictError, CorruptRunError, InputError, MissingError, nearest
from ..job.job import words_of
from ..job.layout import RootPaths
from ..job.plan import Plan
from ..job.wire import decode, parsed
from ..process import spawn
from ..storage.registry import open_store
from ..storage.store import create, current
from .space import Parameter, Value

VERSION = 1
# The name of a trial's run is that of the sweep and its number.
MAX_NAME = ids.MAX_NAME - len("-00000")
HEARTBEAT_S, HEARTBEAT_LATE_S = 15.0, 120.0
DONE, CANCELLED, FAILED = "DONE", "CANCELLED", "FAILED"
_T = TypeVar("_T")


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


@dataclass(frozen=True, kw_only=True)
class Heartbeat:
    """The last sign of life of a driver."""

    time: float
    driver: str  # its process
    log: str = ""
    ended: bool = False

    def is_live(self, now: float) -> bool:
        if self.ended or (spawn.same_machine(self.driver) and not spawn.alive(self.driver)):
            return False
        return spawn.same_machine(self.driver) or abs(now - self.time) < HEARTBEAT_LATE_S


def with_parameters(args: Any, params: Mapping[str, Value]) -> Any:
    """Return the arguments of a program with these parameters: keywords, or words at the end of its words."""
    if args is None or isinstance(args, dict):
        return {**(args or {}), **params}
    return [*args, *words_of(params)]


class Book:
    """The sweeps of a root."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.store = open_store(RootPaths(root).sweeps)

    def names(self) -> list[str]:
        keys = (stat.key.removeprefix("specs/") for stat in self.store.list("specs/"))
        return [key.removesuffix(".json") for key in keys if key.endswith(".json")]

    def read(self, name: str) -> SweepRecord:
        """Return a sweep, or raise InputError with the nearest name."""
        if record := self.find(name):
            return record
        names = self.names()
        near = nearest(name, names) if names else "There is none. Next: podlift sweep create."
        raise InputError(f"No such sweep below {self.root!r}. Received: {name!r}. {near}")

    def find(self, name: str) -> SweepRecord | None:
        """Return a sweep; None if there is none of the name."""
        return self._stored(name)[0]

    def add(self, record: SweepRecord, plan: Plan) -> bool:
        """Create a sweep; False if there is one of its name."""
        create(self.store, record.plan, plan.to_json().encode())
        return create(self.store, f"specs/{record.spec.name}.json", _encoded(record))

    def change(self, name: str, **fields: object) -> SweepRecord:
        """Change fields of a sweep, whatever other processes change at the same time."""
        while True:
            before, generation = self._stored(name)
            if before is None:
                return self.read(name)
            after = replace(before, **fields)  # type: ignore[arg-type]
            with suppress(ConflictError):
                self.store.swap(f"specs/{name}.json", [_encoded(after)], expected=generation)
                return after

    def plan(self, record: SweepRecord) -> Plan:
        """Return the plan of the trials, without their parameters."""
        data = bytes(self.store.get(record.plan))
        return Plan.from_json(data, f"{self.store.url}/{record.plan}", root=self.root)

    def end(self, record: SweepRecord) -> End | None:
        """Return how a sweep ended since its last resume; None while it goes on."""
        return self._get(End, _this("ends", record))

    def put_end(self, record: SweepRecord, end: End) -> None:
        create(self.store, _this("ends", record), _encoded(end))

    def request_cancel(self, record: SweepRecord) -> None:
        create(self.store, _this("cancels", record), b"")

    def is_cancelled(self, record: SweepRecord) -> bool:
        """Return whether its cancellation was requested since the last resume."""
        try:
            self.store.stat(_this("cancels", record))
        except MissingError:
            return False
        return True

    def heartbeat(self, record: SweepRecord) -> Heartbeat | None:
        """Return the last heartbeat of its drivers."""
        return self._get(Heartbeat, f"drivers/{record.id}")

    def beat(self, record: SweepRecord, beat: Heartbeat) -> None:
        """Write the heartbeat of a driver; the one of another driver at the same moment is as good."""
        key, generation = f"drivers/{record.id}", None
        with suppress(MissingError):
            generation = self.store.stat(key).generation
        with suppress(ConflictError):
            self.store.swap(key, [_encoded(beat)], expected=generation)

    def _stored(self, name: str) -> tuple[SweepRecord | None, str]:
        key = f"specs/{name}.json"
        try:
            data, generation = current(self.store, key)
        except (MissingError, InputError):
            return None, ""
        return self._decoded(SweepRecord, data, key), generation

    def _get(self, kind: type[_T], key: str) -> _T | None:
        try:
            return self._decoded(kind, current(self.store, key)[0], key)
        except MissingError:
            return None

    def _decoded(self, kind: type[_T], data: bytes, key: str) -> _T:
        try:
            return decode(kind, parsed(data))
        except (ValueError, TypeError) as error:
            raise CorruptRunError(f"The record {key!r} of a sweep is damaged: {error}. Nothing was changed.") from None


def _this(kind: str, record: SweepRecord) -> str:
    return f"{kind}/{record.id}/{record.resumes}"


def _encoded(record: SweepRecord | End | Heartbeat) -> bytes:
    return json.dumps(asdict(record)).encode()
