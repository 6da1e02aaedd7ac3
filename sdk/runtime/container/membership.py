"""How the containers of a job become one attempt: each says that it is there, the first one says who belongs together.

Vertex AI starts single containers again, and whole jobs, at any time and in any order. An attempt is an object that the first
task's container creates only if absent; it names one container of each task, and no container belongs to two of them.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ...clock import Clock
from ...errors import AlreadyExistsError, CorruptRunError, MissingError, StoreError
from ...spec.layout import RunPaths
from ...storage.store import Store

_KEYS = RunPaths("")
_POLL_S = 0.5
# Machines of one job may come minutes apart.
WAIT_S = 900.0


@dataclass(frozen=True, kw_only=True)
class Join:
    """A container that has started.

    Args:
        task: which task it is.
        nonce: tells it from other containers of that task.
        time: unix time at which it started.
    """

    task: str
    nonce: str
    time: float


@dataclass(frozen=True, kw_only=True)
class Claim:
    """The containers of one attempt.

    Args:
        attempt: its number, from 1.
        job: which of the run's vendor jobs it belongs to, from 1.
        members: the nonce of each task's container.
    """

    attempt: int
    job: int
    members: Mapping[str, str]


def choose(joins: Iterable[Join], claims: Iterable[Claim], tasks: Sequence[str]) -> dict[str, str]:
    """Return the nonce of the newest container of each task; tasks whose newest one belongs to an attempt are missing.

    A container that is older than one of an attempt is gone: it was replaced before it belonged to any.
    """
    used = {nonce for claim in claims for nonce in claim.members.values()}
    newest = {join.task: join.nonce for join in sorted(joins, key=lambda join: (join.time, join.nonce))}
    return {task: newest[task] for task in tasks if task in newest and newest[task] not in used}


class Formation:
    """One container's part in it.

    Args:
        store: the run's directory.
        task: this container's task.
        tasks: all tasks, the first one decides.
        job: number of the vendor's job, from 1.
        clock: what time it is.
        log: takes lines for people.
    """

    def __init__(
        self, store: Store, task: str, tasks: Sequence[str], job: int, clock: Clock, log: Callable[[str], None]
    ) -> None:
        self._store = store
        self._task = task
        self._tasks = tasks
        self._job = job
        self._clock = clock
        self._log = log
        self.nonce = secrets.token_hex(8)
        self.claims: list[Claim] = []
        self._known: dict[str, Join] = {}

    def form(self, wait_s: float = WAIT_S) -> Claim:
        """Return the attempt that this container belongs to.

        Args:
            wait_s: how long the others may take to come.

        Raises:
            StoreError: the bucket refuses, or they did not come.
        """
        until = self._clock.monotonic() + wait_s
        decides = self._task == self._tasks[0]
        if len(self._tasks) > 1:
            self._join()
        waiting: list[str] = []
        while True:
            self._read_claims()
            mine = next((claim for claim in self.claims if claim.members.get(self._task) == self.nonce), None)
            if mine is not None:
                return mine
            if decides:
                members = self._members()
                missing = [task for task in self._tasks if task not in members]
                if not missing:
                    self._claim(members)
                    continue
            else:
                missing = [self._tasks[0]]
            if missing != waiting:
                waiting = missing
                self._log(f"waits for {', '.join(missing)}")
            if self._clock.monotonic() >= until:
                raise StoreError(self._late(missing, wait_s))
            self._clock.sleep(_POLL_S)

    def _late(self, missing: Sequence[str], wait_s: float) -> str:
        if self._task == self._tasks[0]:
            what = f"{', '.join(missing)} did not come within {wait_s:g} s, and no attempt was started"
        else:
            what = f"{missing[0]} has started no attempt with this container within {wait_s:g} s"
        return (
            f"{what}. Next: look at the log of {missing[0]}; the machines of a job may be hard to get in this region."
        )

    def replaced(self, claim: Claim) -> list[str]:
        """Return the tasks of an attempt that another container waits to take: the one of the attempt is gone."""
        newer = choose(self._joins(), self._read_claims(), self._tasks)
        return [task for task in newer if task in claim.members]

    def _join(self) -> None:
        about = {"task": self._task, "nonce": self.nonce, "time": self._clock.now()}
        self._store.put_new(_KEYS.member(self._task, self.nonce), [json.dumps(about).encode()])

    def _members(self) -> dict[str, str]:
        if len(self._tasks) == 1:
            return {self._task: self.nonce}
        return {**choose(self._joins(), self.claims, self._tasks), self._task: self.nonce}

    def _joins(self) -> list[Join]:
        for stat in self._store.list(f"{_KEYS.members}/"):
            # They never change.
            if stat.key not in self._known:
                about = json.loads(bytes(self._store.get(stat.key)))
                join = Join(task=str(about["task"]), nonce=str(about["nonce"]), time=float(about["time"]))
                self._known[stat.key] = join
        return list(self._known.values())

    def _claim(self, members: Mapping[str, str]) -> None:
        number = len(self.claims) + 1
        about = {"job": self._job, "members": members, "nonce": self.nonce, "time": self._clock.now()}
        try:
            self._store.put_new(_KEYS.membership(number), [json.dumps(about).encode()])
        except AlreadyExistsError:
            # Whoever was faster is read next: it may be this very request, whose answer was lost.
            return

    def _read_claims(self) -> list[Claim]:
        """Read the attempts that have appeared; they are numbered without gaps."""
        while True:
            number = len(self.claims) + 1
            try:
                about = json.loads(bytes(self._store.get(_KEYS.membership(number))))
                claim = Claim(attempt=number, job=int(about["job"]), members=dict(about["members"]))
            except MissingError:
                return self.claims
            except (ValueError, LookupError, TypeError) as error:
                raise CorruptRunError(f"{self._store.url}/{_KEYS.membership(number)} is damaged: {error!r}.") from None
            self.claims.append(claim)
