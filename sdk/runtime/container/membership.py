"""How the containers of a job form an attempt: each announces itself, and the first task's container lists the members.

Vertex AI restarts single containers, and whole jobs, at any time and in any order. An attempt is an object that the first
task's container creates only if absent. It names one container of each task, and no container is a member of two attempts.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ...clock import Clock
from ...errors import AlreadyExistsError, CorruptRunError, MissingError, StoreError
from ...logs import logger
from ...spec.layout import RunPaths
from ...storage.store import Store

_log = logger("runtime")

_KEYS = RunPaths("")
_POLL_S = 0.5
# The machines of one job may start minutes apart.
WAIT_S = 900.0


@dataclass(frozen=True, kw_only=True)
class MemberContainer:
    """A container that has started."""

    task: str
    nonce: str  # distinguishes it from other containers of that task
    time: float  # unix time of its start


@dataclass(frozen=True, kw_only=True)
class Membership:
    """The containers of one attempt."""

    attempt: int  # from 1
    job: int  # number of the run's vendor job, from 1
    members: Mapping[str, str]  # the nonce of each task's container


def choose(
    members: Iterable[MemberContainer], memberships: Iterable[Membership], tasks: Sequence[str]
) -> dict[str, str]:
    """Return the nonce of each task's newest container, without the tasks whose newest one already belongs to an attempt.

    A container that is older than a member of an attempt was replaced before it became a member of any.
    """
    used = {nonce for membership in memberships for nonce in membership.members.values()}
    newest = {member.task: member.nonce for member in sorted(members, key=lambda each: (each.time, each.nonce))}
    return {task: newest[task] for task in tasks if task in newest and newest[task] not in used}


class MembershipRendezvous:
    """One container's side of forming attempts. `job` is the number of the vendor's job, from 1."""

    def __init__(self, store: Store, task: str, tasks: Sequence[str], job: int, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._task, self._tasks, self._job = task, tasks, job
        self.nonce = secrets.token_hex(8)
        self.memberships: list[Membership] = []
        self._known: dict[str, MemberContainer] = {}

    def form(self, wait_s: float = WAIT_S) -> Membership:
        """Return the attempt that this container belongs to, waiting at most `wait_s` seconds for the other containers."""
        until = self._clock.monotonic() + wait_s
        decides = self._task == self._tasks[0]
        if len(self._tasks) > 1:
            data = {"task": self._task, "nonce": self.nonce, "time": self._clock.now()}
            self._store.put_new(_KEYS.member(self._task, self.nonce), [json.dumps(data).encode()])
        waiting: list[str] = []
        while True:
            self._read_memberships()
            mine = next((each for each in self.memberships if each.members.get(self._task) == self.nonce), None)
            if mine is not None:
                return mine
            if decides:
                members = {self._task: self.nonce}
                if len(self._tasks) > 1:
                    members = {**choose(self._members(), self.memberships, self._tasks), **members}
                missing = [task for task in self._tasks if task not in members]
                if not missing:
                    self._create(members)
                    continue
            else:
                missing = [self._tasks[0]]
            if missing != waiting:
                waiting = missing
                _log.info(f"waiting for {', '.join(missing)}")
            if self._clock.monotonic() >= until:
                raise StoreError(self._timed_out(missing, wait_s))
            self._clock.sleep(_POLL_S)

    def _timed_out(self, missing: Sequence[str], wait_s: float) -> str:
        if self._task == self._tasks[0]:
            what = f"{', '.join(missing)} did not start within {wait_s:g} s, and no attempt was started"
        else:
            what = f"{missing[0]} did not start an attempt with this container within {wait_s:g} s"
        return f"{what}. Next: read the log of {missing[0]}; machines may be scarce in this region."

    def replaced(self, membership: Membership) -> list[str]:
        """Return the tasks of an attempt for which a newer container is waiting: the member of the attempt is gone."""
        newer = choose(self._members(), self._read_memberships(), self._tasks)
        return [task for task in newer if task in membership.members]

    def _members(self) -> list[MemberContainer]:
        for stat in self._store.list(f"{_KEYS.members}/"):
            # They never change.
            if stat.key not in self._known:
                data = json.loads(bytes(self._store.get(stat.key)))
                member = MemberContainer(task=str(data["task"]), nonce=str(data["nonce"]), time=float(data["time"]))
                self._known[stat.key] = member
        return list(self._known.values())

    def _create(self, members: Mapping[str, str]) -> None:
        number = len(self.memberships) + 1
        data = {"job": self._job, "members": members, "nonce": self.nonce, "time": self._clock.now()}
        try:
            self._store.put_new(_KEYS.membership(number), [json.dumps(data).encode()])
        except AlreadyExistsError:
            # Read next: the object of another container, or of this very request, whose answer was lost.
            return

    def _read_memberships(self) -> list[Membership]:
        """Read the attempts that have appeared since the last call. They are numbered without gaps."""
        while True:
            number = len(self.memberships) + 1
            try:
                data = json.loads(bytes(self._store.get(_KEYS.membership(number))))
                membership = Membership(attempt=number, job=int(data["job"]), members=dict(data["members"]))
            except MissingError:
                return self.memberships
            except (ValueError, LookupError, TypeError) as error:
                raise CorruptRunError(f"{self._store.url}/{_KEYS.membership(number)} is damaged: {error!r}.") from None
            self.memberships.append(membership)
