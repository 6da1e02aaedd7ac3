"""The agreement between the agents of a run: on its attempts, and on the end of each one.

One agent that owns all tasks agrees with itself. Agents of several hosts agree through the run's store (`shared_agreement.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from ..clock import Clock
from ..job.layout import RunPaths
from ..job.payload import Payload
from ..job.policies import Retry
from ..process.hang import Hang, blame
from ..records.recorder import last_attempt, last_step
from ..records.restarts import Decision, EndedAttempt, decide
from ..records.verdicts import AttemptEnd
from ..runtime.rendezvous import FolderBoard, closed, stop_agreed
from ..status import Reason, State
from .ending import POLL_S


class LeaveError(Exception):
    """This agent has nothing more to do.

    `code` is the exit code of its container, None for the one that restarts it. `ended` is an attempt that no other one
    follows, although its end demanded that, and why.
    """

    def __init__(self, message: str, code: int | None = None, ended: tuple[int, AttemptEnd] | None = None) -> None:
        super().__init__(message)
        self.code, self.ended = code, ended


@dataclass(frozen=True, kw_only=True)
class Membership:
    """The containers of one attempt; of an agent that owns all tasks there is none."""

    attempt: int  # from 1
    job: int = 1  # number of the run's vendor job, from 1
    members: Mapping[str, str] = field(default_factory=dict)  # the nonce of each task's container
    times: Mapping[str, float] = field(default_factory=dict)  # unix time of its start
    addresses: Mapping[str, str] = field(default_factory=dict)  # "host:port" of each task, if published


class Agreement(Protocol):
    """One agent's side of it."""

    def join(self, delay_s: float = 0.0) -> Membership:
        """Return the next attempt of this agent, not before `delay_s` seconds have passed; LeaveError if there is none."""
        ...

    def requested(self) -> tuple[AttemptEnd, float] | None:
        """Return the end that a user or the time limit requests now, and how many seconds the tasks have to stop."""
        ...

    def grace_s(self) -> float | None:
        """Return the shortest time that cancel requests leave the tasks, None without one."""
        ...

    def follow(self, attempt: int, steps: Callable[[], Sequence[int]]) -> Callable[[], None]:
        """Look for the end of an attempt from now on, until a call of the returned function.

        Args:
            attempt: its number.
            steps: the steps of the tasks of this agent, each of which needs all others: while they grow as usual, the attempt
                has not ended, and requests that cost money are left out.
        """
        ...

    def stop_agreed(self, attempt: int) -> bool:
        """Return whether the tasks have agreed to stop after a step."""
        ...

    def let_go_on(self, attempt: int, task: str, steps: int) -> None:
        """Let the others agree on steps without a task that has exited after `steps`."""
        ...

    def known_end(self, attempt: int) -> AttemptEnd | None:
        """Return the end that another agent has concluded, if this agent has read it already; sends no request."""
        ...

    def finished(self, attempt: int) -> set[str]:
        """Return the tasks of other agents that are done or have exited."""
        ...

    def conclude(
        self, attempt: int, own_end: AttemptEnd, *, step: int | None, exit_code: int = 0, not_restarted: str = ""
    ) -> AttemptEnd:
        """Decide how to continue after an attempt, and return the valid decision: this one, or another agent's.

        Args:
            attempt: its number.
            own_end: the end as this agent sees it.
            step: the last training step.
            exit_code: of this agent's container, if no attempt follows.
            not_restarted: the task that ended, and was not restarted alone although the others could go on.
        """
        ...

    def is_own(self, end: AttemptEnd) -> bool:
        """Return whether this agent has concluded an end."""
        ...

    def training_step(self) -> int | None:
        """Return the training's step, or None if it is unknown here."""
        ...

    def restart_alone(self, attempt: int, task: str, reason: Reason, step: int | None = None) -> Decision:
        """Decide whether a task is restarted while the others continue.

        Args:
            attempt: its number.
            task: the task that has ended.
            reason: the reason of its end.
            step: the training's step; None if it is no evidence for the cause.

        Raises:
            LeaveError: another agent runs the task now.
        """
        ...

    def hang(self, attempt: int, beats: Mapping[str, int]) -> Hang | None:
        """Report that this agent's tasks hang; return the hang once all tasks of the run do, and this agent ends it."""
        ...

    def is_idle(self, attempt: int, *, idle: bool) -> bool:
        """Report whether this agent's GPUs are idle; return whether all are, and this agent ends the attempt."""
        ...

    def is_overdue(self) -> bool:
        """Return whether this agent ends the run because it has reached its time limit."""
        ...


class StopRequests(Protocol):
    """The stop requests to an agent of all tasks."""

    def stop_requested(self) -> tuple[AttemptEnd, float] | None: ...
    def cancel_grace_s(self) -> float | None: ...


class OwnAgreement:
    """The agreement of an agent that owns all tasks with itself: `earlier` supervisors made the `earlier` attempts."""

    def __init__(
        self, paths: RunPaths, payload: Payload, retry: Retry, conditions: StopRequests, clock: Clock, *, earlier: int
    ) -> None:
        self._paths, self._tasks, self._limits, self._retry = paths, payload.tasks, payload.limits, retry
        self._drill, self._conditions, self._clock = bool(payload.drill), conditions, clock
        self._attempt = earlier
        # Attempts, and tasks restarted alone: they share the budgets.
        self._history: list[EndedAttempt] = []

    def join(self, delay_s: float = 0.0) -> Membership:
        self.wait(delay_s)
        # An earlier supervisor may have been killed after the first file of an attempt, and before its first record.
        self._attempt = max(self._attempt, last_attempt(self._paths)) + 1
        return Membership(attempt=self._attempt)

    def wait(self, delay_s: float) -> None:
        """Wait `delay_s` seconds; LeaveError if a request ends the run."""
        until = self._clock.monotonic() + delay_s
        while self.requested() is None and self._clock.monotonic() < until:
            self._clock.sleep(POLL_S)
        if self.requested() is not None:
            raise LeaveError("the run is stopped")

    def requested(self) -> tuple[AttemptEnd, float] | None:
        return self._conditions.stop_requested()

    def grace_s(self) -> float | None:
        return self._conditions.cancel_grace_s()

    def stop_agreed(self, attempt: int) -> bool:
        return stop_agreed(self._paths, attempt)

    def let_go_on(self, attempt: int, task: str, steps: int) -> None:
        FolderBoard(self._paths, attempt).create(closed(task, steps), {})

    def follow(self, attempt: int, steps: Callable[[], Sequence[int]]) -> Callable[[], None]:
        return lambda: None

    def known_end(self, attempt: int) -> AttemptEnd | None:
        return None

    def finished(self, attempt: int) -> set[str]:
        return set()

    def conclude(
        self, attempt: int, own_end: AttemptEnd, *, step: int | None, exit_code: int = 0, not_restarted: str = ""
    ) -> AttemptEnd:
        decision = self._decided(
            EndedAttempt(state=own_end.state, reason=own_end.reason, step=step, task=not_restarted)
        )
        return replace(
            own_end,
            step=step,
            not_restarted=not_restarted,
            restart=decision.restart,
            why=decision.why,
            delay_s=decision.delay_s,
        )

    def is_own(self, end: AttemptEnd) -> bool:
        return True

    def training_step(self) -> int | None:
        return last_step(self._paths, self._attempt, self._tasks[0])

    def restart_alone(self, attempt: int, task: str, reason: Reason, step: int | None = None) -> Decision:
        now = self._clock.now()
        return self._decided(EndedAttempt(state=State.FAILED, reason=reason, step=step, task=task, time=now))

    def _decided(self, ended: EndedAttempt) -> Decision:
        decision = decide([*self._history, ended], self._retry, drill=self._drill)
        if decision.restart:
            self._history.append(ended)
        return decision

    def hang(self, attempt: int, beats: Mapping[str, int]) -> Hang | None:
        return blame(self._limits.hang_s or 0.0, beats)

    def is_idle(self, attempt: int, *, idle: bool) -> bool:
        return idle

    def is_overdue(self) -> bool:
        # `StopRequests` has the limit.
        return False
