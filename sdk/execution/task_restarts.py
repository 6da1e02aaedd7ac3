"""The tasks that were restarted alone within an attempt, one numbered object each."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from dataclasses import asdict, dataclass, field

from ..job.layout import RunPaths
from ..job.wire import decode, parsed
from ..records.restarts import Decision, EndedAttempt
from ..status import Reason, State
from ..storage.store import Store, create

_KEYS = RunPaths("")


@dataclass(frozen=True, kw_only=True)
class TaskRestart:
    task: str
    nonce: str  # of the container that runs it from then on
    time: float  # unix time of its start
    reason: Reason
    step: int | None = None  # of the training
    ended_at: float | None = None  # unix time of the end of the task before
    why: str = ""  # one sentence about the decision
    id: str = field(default_factory=lambda: secrets.token_hex(8))  # distinguishes containers with the same request

    @property
    def ended(self) -> EndedAttempt:
        return EndedAttempt(state=State.FAILED, reason=self.reason, step=self.step, task=self.task, time=self.ended_at)


class TaskRestarts:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._restarts_by_key: dict[str, TaskRestart] = {}

    def of(self, attempt: int) -> list[TaskRestart]:
        restarts = []
        for stat in self._store.list(f"{_KEYS.restarts(attempt)}/"):
            # They never change.
            if stat.key not in self._restarts_by_key:
                data = parsed(bytes(self._store.get(stat.key)))
                self._restarts_by_key[stat.key] = decode(TaskRestart, {**data, "reason": Reason(data["reason"])})
            restarts.append(self._restarts_by_key[stat.key])
        return restarts

    def decide(
        self,
        attempt: int,
        ended: EndedAttempt,
        by: Callable[[list[EndedAttempt]], Decision],
        *,
        nonce: str,
        time: float,
    ) -> Decision:
        """Return the decision of `by` about a task that has ended; it is recorded if the task is restarted."""
        while True:
            before = self.of(attempt)
            decision = by([*(restart.ended for restart in before), ended])
            if not decision.restart:
                return decision
            own = TaskRestart(
                task=ended.task,
                nonce=nonce,
                time=time,
                reason=ended.reason,
                step=ended.step,
                ended_at=ended.time,
                why=decision.why,
            )
            # Another container may be faster. Then this one decides again, and no budget is spent twice.
            create(self._store, _KEYS.restart(attempt, len(before) + 1), json.dumps(asdict(own)).encode())
            if self.of(attempt)[len(before)] == own:
                return decision
