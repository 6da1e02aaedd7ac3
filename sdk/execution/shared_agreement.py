"""How the containers of a job form attempts, and agree on the end of each one.

A service may replace single containers and restart whole jobs, at any time and in any order. The agreements of all containers
are therefore objects that are created only if absent:

- `ready`: this container can take part in that attempt. An earlier task of it is gone.
- `membership`: the attempt, with one container of each task. The first task's container creates it.
- `end`: how the attempt ended, and whether another one follows. Any container that sees the end creates it: its task ended, or
  its predecessor is a member of the attempt. All others only read it, so that no two can disagree.
- `restarts`: the tasks that were restarted alone, while the attempt continued (`task_restarts.py`).
"""

from __future__ import annotations

import json
import math
import secrets
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace

from ..clock import Clock
from ..errors import AlreadyExistsError, CorruptRunError, MissingError, PodliftError, StoreError
from ..job import cluster
from ..job.layout import RunPaths
from ..job.policies import Retry
from ..job.wire import decode, parsed
from ..logs import logger
from ..process import machine
from ..process.hang import Hang, blame
from ..records.restarts import Decision, EndedAttempt, decide
from ..records.sync import cancels, index, task_records
from ..records.verdicts import AttemptEnd
from ..runtime.rendezvous import closed
from ..status import EXIT_CANCELLED, EXIT_INFRASTRUCTURE, EXIT_USER, Reason, State
from ..storage.store import Store, create
from .agreement import LeaveError, Membership
from .ending import OF_ALL_TASKS, over_limit
from .task_restarts import TaskRestart, TaskRestarts

_log = logger("runtime")

_KEYS = RunPaths("")
# Containers that restart together come within a second; the machines of a job may start minutes apart.
_SOON_S, _SOON_POLL_S, _POLL_S = 10.0, 0.2, 0.5
# How often to read the steps of the tasks here; the following counts are in these.
_FOLLOW_S = 0.1
# How often to look for the end of an attempt: while tasks step, when they begin to pause, and when they pause for longer.
_WHILE_STEPS, _SOON_AFTER, _LATER = 20, 2, 5
_SOON = 20
# The longest of the last pauses between steps, this many, is the usual one.
_PAUSES = 8
# How often to look whether the GPUs of the other containers are idle too.
_IDLE_S = 15.0
# The same, after a request that has failed.
_IDLE_AGAIN_S = 1.0
# How often to look for a cancel request before an attempt and in the last phase.
_CANCEL_S = 2.0
WAIT_S = 900.0


class StepPauses:
    """Decides when to check whether an attempt has ended: soon once its tasks pause for longer than usual, else rarely.

    Tasks that step without the others find the end, too.
    """

    def __init__(self) -> None:
        self._steps: Sequence[int] | None = None
        self._paused, self._looked = 0, 0
        self._pauses = deque[int](maxlen=_PAUSES)

    def look_due(self, steps: Sequence[int]) -> bool:
        """Return whether to look now; called once in `_FOLLOW_S`, with the steps that the tasks have taken."""
        self._paused += 1
        if steps != self._steps:
            self._pauses += [] if self._steps is None else [self._paused]
            self._steps, self._paused = steps, 0
        longer = self._paused - int(1.25 * max(self._pauses, default=0))
        self._looked += 1
        if self._looked < (_WHILE_STEPS if longer <= 0 else _SOON_AFTER if longer <= _SOON else _LATER):
            return False
        self._looked = 0
        return True


@dataclass(frozen=True, kw_only=True)
class ReadyContainer:
    """A container that can take part in an attempt."""

    task: str
    job: int  # number of the run's vendor job, from 1
    nonce: str  # distinguishes it from other containers of that task
    time: float  # unix time of its start
    address: str = ""  # "host:port" for the other tasks; "" if the service passes it on


def newest(ready: Iterable[ReadyContainer], tasks: Sequence[str]) -> dict[str, ReadyContainer]:
    """Return each task's newest container: an older one was replaced."""
    latest = {
        container.task: container
        for container in sorted(ready, key=lambda container: (container.time, container.nonce))
    }
    return {task: latest[task] for task in tasks if task in latest}


class SharedAgreement:
    """One container's side of the agreement.

    Args:
        job: the number of the vendor's job.
        resumes_by_users: the number of the last job before the last resume by a user.
        hang_s: how long tasks may do nothing until that counts as a hang.
        limit_s: how long the job may take from the beginning of its first attempt; None if the service has the limit.
        age_s: returns how long an object of the store has existed, in seconds.
        stop: returns whether this container has to end.
        address: the address of this task, if the tasks exchange their addresses.
    """

    def __init__(
        self,
        store: Store,
        task: str,
        tasks: Sequence[str],
        job: int,
        clock: Clock,
        *,
        retry: Retry,
        resumes_by_users: int | None = None,
        drill: bool = False,
        hang_s: float | None = None,
        limit_s: float | None = None,
        age_s: Callable[[str], float] = lambda key: 0.0,
        stop: Callable[[], bool] = lambda: False,
        address: str = "",
    ) -> None:
        self._store, self._clock, self._stop = store, clock, stop
        self._task, self._tasks, self._job = task, tasks, job
        self._resumes_by_users = job - 1 if resumes_by_users is None else resumes_by_users
        self._retry, self._drill, self._hang_s = retry, drill, hang_s or 0.0
        # The first task keeps it.
        self._address, self._limit_s = address, limit_s if task == tasks[0] else None
        self._age_s = age_s
        self._deadline: float | None = None
        self.nonce, self._started = secrets.token_hex(8), clock.now()
        self._memberships: list[Membership] = []
        # Ends that new containers have concluded, of attempts of an earlier container of this task, which is gone.
        self.inherited: dict[int, AttemptEnd] = {}
        self._left = self._announced = 0
        self._ready: dict[str, ReadyContainer] = {}
        self._ends: dict[int, AttemptEnd] = {}
        # Of one attempt.
        self._stalled_since: float | None = None
        self._said_idle: bool | None = None
        self._idle_due = self._idle_asked = -math.inf
        # Whether this container's task may be restarted while the others go on, and whether any task may.
        self._restarts_alone = cluster.restarts_alone(task, tasks)
        self._any_restarts_alone = any(cluster.restarts_alone(name, tasks) for name in tasks)
        self._restarts = TaskRestarts(store)
        self._heartbeat: str | None = None

    # --- The beginning of an attempt

    def join(self, delay_s: float = 0.0, wait_s: float = WAIT_S) -> Membership:
        """Return the next attempt of this container, waiting at most `wait_s` seconds for the other containers.

        Raises:
            LeaveError: there is none: the run was cancelled or has ended, or this container was stopped or replaced.
        """
        start, waiting, requests = self._clock.monotonic(), list[str](), self.cancel_watch()
        while True:
            if self._stop():
                raise LeaveError("this container is stopped")
            last = self._last_membership()
            if last is not None and last.members[self._task] == self.nonce and last.attempt > self._left:
                self._left = last.attempt
                # After its creation: who writes that record finds the attempt, or this container finds the record.
                self.leave_if_over()
                return last
            number, replaced = len(self._memberships) + 1, last is not None and last.members[self._task] != self.nonce
            if last is not None and replaced and self._may_take_over and self.end_of(last.attempt) is None:
                if self._first_task_reports() and not requests.look() and self._takes_over(last):
                    continue
            else:
                self._announce(number)
                if last is not None and replaced:
                    self._end_of_predecessor(last)
            if requests.look():
                # Even if no client watches the run: a job may start after the process that created it has ended.
                raise LeaveError("the run was cancelled: its program is not started", EXIT_CANCELLED)
            waited_s = self._clock.monotonic() - start
            missing = self._missing(number, may_create=waited_s >= delay_s)
            if missing is None:
                continue
            if missing and last is not None and self.is_overdue():
                late = f"the run has reached its time limit, and {', '.join(missing)} did not start again"
                raise LeaveError(late, EXIT_USER, (last.attempt, over_limit(self._limit_s)))
            if missing and missing != waiting:
                waiting = missing
                _log.info(f"waiting for {', '.join(missing)}")
            if waited_s >= wait_s + delay_s:
                raise StoreError(self._timed_out(missing, wait_s))
            self._clock.sleep(_SOON_POLL_S if waited_s < _SOON_S else _POLL_S)

    def leave_if_over(self) -> None:
        """Raise LeaveError if the job has its final record: its service has lost it, and it lives."""
        if index.has_final(self._store, self._job):
            raise LeaveError("the run goes on or has ended without this job", EXIT_INFRASTRUCTURE)

    def succeeded(self) -> int:
        """Return the attempt with which the training has ended in success, in this job or an earlier one; 0 for none."""
        self._read_memberships()
        last = len(self._memberships)
        end = self.end_of(last) if last else None
        return last if end is not None and end.state is State.SUCCEEDED else 0

    def is_cancelled(self) -> bool:
        return bool(cancels.cancel_requests(self._store, self._job - 1, self._resumes_by_users))

    def cancel_watch(self) -> cancels.CancelWatch:
        """Return a watch that polls for cancel requests."""
        return cancels.CancelWatch(self._store, self._clock, self._job - 1, self._resumes_by_users, every_s=_CANCEL_S)

    def _last_membership(self) -> Membership | None:
        self._read_memberships()
        last = self._memberships[-1] if self._memberships else None
        if last is None or last.job < self._job:
            return None
        if last.job > self._job:
            raise LeaveError("a later job of this run has begun")
        for restart in self.restarts_of_task(last.attempt):
            members, times = {**last.members, restart.task: restart.nonce}, {**last.times, restart.task: restart.time}
            last = replace(last, members=members, times=times)
        return last

    @property
    def _may_take_over(self) -> bool:
        """Whether a new container may take its task over within an attempt: the others have to find it where it was."""
        return self._restarts_alone and (not self._address or cluster.role_of(self._task) == "evaluator")

    def _announce(self, number: int) -> None:
        if self._announced < number:
            data = {"task": self._task, "job": self._job, "nonce": self.nonce, "time": self._started}
            data |= {"address": self._address} if self._address else {}
            create(self._store, _KEYS.ready(number, self._task, self.nonce), json.dumps(data).encode())
            self._announced = number

    def _first_task_reports(self) -> bool:
        # If all containers of a job are replaced at the same time, that is one preemption, and the attempt ends.
        try:
            generation = self._store.stat(_KEYS.heartbeat).generation
        except MissingError:
            generation = ""
        if self._heartbeat is None:
            self._heartbeat = generation
        return generation != self._heartbeat

    def _takes_over(self, last: Membership) -> bool:
        if self.restart_alone(last.attempt, self._task, Reason.PREEMPTED).restart:
            return True
        self._end_of_predecessor(last)
        return False

    def _end_of_predecessor(self, last: Membership) -> None:
        """End an attempt to which another container of this task belongs; one of them was replaced."""
        if last.times.get(self._task, -math.inf) > self._started:
            raise LeaveError("this container was replaced by a newer one")
        end = self.end_of(last.attempt)
        if end is None:
            # A container that disappears without a record was on a machine that is gone.
            preemption = AttemptEnd(state=State.FAILED, reason=Reason.PREEMPTED)
            end = self._conclude(
                last.attempt, preemption, exit_code=EXIT_INFRASTRUCTURE, step=None, not_restarted="", cancelled=False
            )
        if end.nonce not in last.members.values():
            self.inherited[last.attempt] = end
        if not end.restart:
            raise LeaveError(f"the run has ended ({end.reason.value}) {end.why}".rstrip(), end.exit_code)

    def _missing(self, number: int, *, may_create: bool) -> list[str] | None:
        """Return the tasks that this container waits for; None once it has tried to create the attempt."""
        if self._task != self._tasks[0]:
            return [self._tasks[0]]
        present = newest(self._ready_for(number), self._tasks)
        if present[self._task].nonce != self.nonce:
            raise LeaveError("this container was replaced by a newer one")
        missing = [task for task in self._tasks if task not in present]
        if missing or not may_create:
            return missing
        members = {task: container.nonce for task, container in present.items()}
        times = {task: container.time for task, container in present.items()}
        data = {"job": self._job, "members": members, "times": times, "time": self._clock.now()}
        data |= {"addresses": {task: container.address for task, container in present.items()}} if self._address else {}
        # The next read finds the object of another container, or of this very request after a lost answer.
        create(self._store, _KEYS.membership(number), json.dumps(data).encode())
        return None

    def _timed_out(self, missing: Sequence[str], wait_s: float) -> str:
        if self._task == self._tasks[0]:
            what = f"{', '.join(missing)} did not start within {wait_s:g} s, and no attempt was started"
        else:
            what = f"{missing[0]} did not start an attempt with this container within {wait_s:g} s"
        return f"{what}. Next: read the log of {missing[0]}; machines may be scarce in this region."

    def _ready_for(self, number: int) -> list[ReadyContainer]:
        prefix = f"{_KEYS.ready_for(number)}/"
        for stat in self._store.list(prefix):
            # They never change.
            if stat.key not in self._ready:
                self._ready[stat.key] = decode(ReadyContainer, parsed(bytes(self._store.get(stat.key))))
        # Containers of an earlier job may have waited for this attempt, and are gone.
        return [
            container for key, container in self._ready.items() if key.startswith(prefix) and container.job == self._job
        ]

    def _read_memberships(self) -> None:
        """Read the attempts that have appeared since the last call. They are numbered without gaps."""
        while True:
            number = len(self._memberships) + 1
            try:
                data = parsed(bytes(self._store.get(_KEYS.membership(number))))
                membership = decode(Membership, {**data, "attempt": number})
                if self._limit_s is not None and self._deadline is None and membership.job == self._job:
                    # By the clock of the bucket: those of machines differ.
                    age_s = self._age_s(_KEYS.membership(number))
                    self._deadline = self._clock.monotonic() + self._limit_s - age_s
                self._memberships.append(membership)
            except MissingError:
                return
            except (ValueError, LookupError, TypeError) as error:
                raise CorruptRunError(f"{self._store.url}/{_KEYS.membership(number)} is damaged: {error!r}.") from None

    # --- Its end

    def end_of(self, attempt: int) -> AttemptEnd | None:
        """Return how an attempt ended, or None if it has no end yet."""
        if attempt not in self._ends:
            if (end := index.end_of(self._store, attempt)) is None:
                return None
            self._ends[attempt] = end
        return self._ends[attempt]

    def follow(self, attempt: int, steps: Callable[[], Sequence[int]]) -> Callable[[], None]:
        self._stalled_since = self._said_idle = None
        self._idle_due = self._idle_asked = -math.inf
        over = threading.Event()
        threading.Thread(target=self._follow, args=[attempt, steps, over], name="podlift-follow", daemon=True).start()
        return over.set

    def _follow(self, attempt: int, steps: Callable[[], Sequence[int]], over: threading.Event) -> None:
        pauses = StepPauses()
        while not over.wait(_FOLLOW_S):
            if not pauses.look_due(steps()):
                continue
            try:
                if self.end_of(attempt) is not None:
                    return
            except (PodliftError, ValueError, LookupError, TypeError) as error:
                _log.info(f"cannot check now whether the attempt has ended: {error}")

    def known_end(self, attempt: int) -> AttemptEnd | None:
        return self._ends.get(attempt)

    def requested(self) -> None:
        """Nothing: tasks carry out cancel requests themselves, and signals are passed on to them."""

    def grace_s(self) -> None:
        """None, likewise."""

    def stop_agreed(self, attempt: int) -> bool:
        """Return False: the first task's exit code shows it."""
        return False

    def is_own(self, end: AttemptEnd) -> bool:
        return end.nonce == self.nonce

    def finished(self, attempt: int) -> set[str]:
        return task_records.finished_tasks(self._store, self._tasks, attempt)

    def conclude(
        self, attempt: int, own_end: AttemptEnd, *, step: int | None = None, exit_code: int = 0, not_restarted: str = ""
    ) -> AttemptEnd:
        if not_restarted:
            # Its own steps say nothing about the training.
            step = self.training_step()
        cancelled = own_end.state is not State.SUCCEEDED and self.is_cancelled()
        return self._conclude(
            attempt, own_end, step=step, exit_code=exit_code, not_restarted=not_restarted, cancelled=cancelled
        )

    def _conclude(
        self,
        attempt: int,
        own_end: AttemptEnd,
        *,
        step: int | None,
        exit_code: int,
        not_restarted: str,
        cancelled: bool,
    ) -> AttemptEnd:
        decision = Decision(restart=False)
        if own_end.state is not State.SUCCEEDED and not cancelled:
            earlier = [*self._history(attempt), *self._ends_of_tasks(attempt)]
            ended = EndedAttempt(state=State.FAILED, reason=own_end.reason, step=step, task=not_restarted)
            decision = decide([*earlier, ended], self._retry, drill=self._drill)
        end = AttemptEnd(
            state=State.SUCCEEDED if own_end.state is State.SUCCEEDED else State.FAILED,
            reason=own_end.reason,
            task=self._task,
            nonce=self.nonce,
            restart=decision.restart,
            why=decision.why,
            delay_s=decision.delay_s,
            step=step,
            exit_code=exit_code,
            # A task that has failed has recorded it.
            failure=own_end.failure if own_end.reason in OF_ALL_TASKS else None,
            not_restarted=not_restarted,
        )
        try:
            self._store.put_new(_KEYS.end(attempt), [json.dumps(asdict(end)).encode()])
        except AlreadyExistsError:
            holds = self.end_of(attempt)
            if holds is not None:
                return holds
            raise
        self._ends[attempt] = end
        return end

    def _history(self, attempt: int) -> list[EndedAttempt]:
        """Return the ends of the earlier attempts, in all jobs since the last resume by a user."""
        jobs = range(self._resumes_by_users + 1, self._job + 1)
        earlier = [past.attempt for past in self._memberships if past.job in jobs and past.attempt < attempt]
        # An attempt without an end was on machines that are gone.
        preemption = EndedAttempt(state=State.FAILED, reason=Reason.PREEMPTED)
        ends: list[EndedAttempt] = []
        for number in earlier:
            end = self.end_of(number)
            ends += [*self._ends_of_tasks(number), preemption if end is None else end.ended]
        return ends

    # --- Tasks that are restarted alone

    def restart_alone(self, attempt: int, task: str, reason: Reason, step: int | None = None) -> Decision:
        if any(restart.time > self._started for restart in self.restarts_of_task(attempt)):
            raise LeaveError("this container was replaced by a newer one")
        if self.end_of(attempt) is not None:
            # A moment ago: a restart would be spent for nothing.
            return Decision(restart=False)
        earlier = self._history(attempt)
        ended = EndedAttempt(state=State.FAILED, reason=reason, step=step, task=task, time=self._clock.now())

        def by(history: list[EndedAttempt]) -> Decision:
            return decide([*earlier, *history], self._retry, drill=self._drill)

        return self._restarts.decide(attempt, ended, by, nonce=self.nonce, time=self._started)

    def let_go_on(self, attempt: int, task: str, steps: int) -> None:
        create(self._store, f"{_KEYS.rendezvous(attempt)}/{closed(task, steps)}", b"{}")

    def training_step(self) -> int | None:
        """Return the step in the last heartbeat of the first task's container, or None."""
        try:
            return parsed(bytes(self._store.get(_KEYS.heartbeat)))["progress"]["step"] or None
        except (MissingError, ValueError, LookupError, TypeError):
            return None

    def restarts_of_task(self, attempt: int) -> list[TaskRestart]:
        """Return the restarts of this container's task alone in an attempt, in their order."""
        return (
            [restart for restart in self._restarts.of(attempt) if restart.task == self._task]
            if self._restarts_alone
            else []
        )

    def _ends_of_tasks(self, attempt: int) -> list[EndedAttempt]:
        return [restart.ended for restart in self._restarts.of(attempt)] if self._any_restarts_alone else []

    # --- Tasks that hang, and idle GPUs

    def is_overdue(self) -> bool:
        if self._deadline is None and self._limit_s is not None:
            # This job only repeats the last phase.
            self._deadline = self._clock.monotonic() + self._limit_s
        return self._deadline is not None and self._clock.monotonic() >= self._deadline

    def hang(self, attempt: int, beats: Mapping[str, int]) -> Hang | None:
        now = self._clock.monotonic()
        self._stalled_since = self._stalled_since or now
        for task, count in beats.items():
            create(self._store, _KEYS.stall(attempt, task, count), b"{}")
        if self._task != self._tasks[0]:
            return None
        together = cluster.in_step(self._tasks)
        reported = {**self.stalled(attempt), **beats}
        silent = [task for task in together if task not in reported]
        if silent and now - self._stalled_since < self._hang_s:
            return None
        return blame(self._hang_s, {task: reported[task] for task in together if task in reported}, silent=silent)

    def stalled(self, attempt: int) -> dict[str, int]:
        """Return the finished batches of each task that was reported."""
        batches: dict[str, int] = {}
        for stat in self._store.list(f"{_KEYS.stalls(attempt)}/"):
            task, beats = stat.key.rpartition("/")[2].split(".")[:2]
            batches[task] = max(int(beats), batches.get(task, 0))
        return batches

    def is_idle(self, attempt: int, *, idle: bool) -> bool:
        now = self._clock.monotonic()
        if now - self._idle_asked < _IDLE_AGAIN_S:
            return False
        self._idle_asked = now
        if self._said_idle is None:
            # An earlier container of this task may have recorded it.
            self._said_idle = bool(self.restarts_of_task(attempt))
        if not (idle or self._said_idle) or (idle is self._said_idle and now < self._idle_due):
            return False
        # While only some of them are idle, each look at the others is a request that costs money.
        self._idle_due = now + _IDLE_S
        if idle is not self._said_idle:
            key = f"{_KEYS.idle(attempt)}/{self._task}.json"
            if idle:
                create(self._store, key, b"{}")
            else:
                with suppress(MissingError):
                    self._store.delete(key)
            self._said_idle = idle
        if not idle or self._task != self._tasks[0]:
            return False
        names = (stat.key.rpartition("/")[2] for stat in self._store.list(f"{_KEYS.idle(attempt)}/"))
        return set(machine.watched(self._tasks)) <= {name.removesuffix(".json") for name in names}
