"""The checkpoints of one task in one attempt.

A program trains in phases: every `fit` is one, and so is every loop that `ctx.checkpoint()` covers. A phase is identified by
its number, in the order in which the program reaches it, and by the variables that it trains. A phase that an earlier
attempt finished is skipped: its final state is restored and the program continues.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from ..clock import Clock
from ..errors import InputError, MissingError
from ..logs import logger
from ..storage.registry import open_store
from ..storage.store import Store
from . import names, opening, restore
from .contents import Contents
from .policy import Policy
from .restore import Checkpoint
from .saver import AsyncSaver, Ticket

_log = logger("checkpoint")

# One task may spend minutes importing while another has already opened the store.
_JOIN_S = 600.0
_MEET_POLL_S = 0.1
_NOT_FINITE = "not finite"
# The assumed cost of a save until one was measured.
_FIRST_S, _FIRST_BYTES_PER_S = 0.05, 1e8


@dataclass(frozen=True, kw_only=True)
class TrainingPhase:
    """A phase as a manifest describes it."""

    kind: str  # "fit" or "loop"
    signature: str  # of its variables
    finished: bool = False
    commit: str = ""  # the checkpoint of its end, if that was kept; unset for the manifest's own phase
    steps: int = 0
    history: Mapping[str, Any] | None = None  # what `fit` returned
    epochs: Sequence[int] = ()  # the epochs of the history


@dataclass(frozen=True)
class _OpenAttempt:
    """The open store, the opening that all tasks share, the saver, and the phases of earlier attempts."""

    store: Store
    opening: opening.Opening
    saver: AsyncSaver
    before: Sequence[TrainingPhase]


def signature(variables: Iterable[tuple[str, str, Sequence[int]]]) -> str:
    """Return a hash of the path, type and shape of each variable."""
    listed = sorted((path, dtype, list(shape)) for path, dtype, shape in variables)
    return hashlib.sha256(json.dumps(listed).encode()).hexdigest()[:16]


class CheckpointManager:
    """The checkpoints of one task in one attempt. The store is opened at the first phase.

    Args:
        about: returns "run_id", "world", "versions" and "code" for every manifest.
        warm_start: a checkpoint of another run to start from, as `STORE#COMMIT`; "" for none.
        saved_before: a step that earlier attempts saved, according to the run's records; None if they record none.
        saved: called in the background with the step of this attempt's first acknowledged checkpoint.
    """

    def __init__(
        self,
        url: str,
        *,
        run_id: str,
        attempt: int,
        task: str,
        tasks: Sequence[str],
        policy: Policy,
        about: Callable[[], Mapping[str, Any]],
        warm_start: str,
        saved_before: int | None,
        saved: Callable[[int], None],
        clock: Clock,
    ) -> None:
        self.policy = policy
        self.run_id = run_id
        self.task = task
        self.tasks = tuple(tasks)
        self.rank = self.tasks.index(task)
        self._url = url
        self.attempt = attempt
        self._about = about
        self._warm_start = warm_start
        self._saved_before = saved_before
        self._saved = saved
        self._clock = clock
        self._opened: _OpenAttempt | None = None
        self._phases: list[TrainingPhase] = []
        self._last_save = clock.monotonic()
        self.base = 0
        self.size = 0  # bytes of the state
        self._last: tuple[int, int, Ticket] | None = None  # the last save: phase, steps, ticket

    @property
    def store(self) -> Store:
        return self._open().store

    @property
    def phases(self) -> int:
        """The number of phases that have begun."""
        return len(self._phases)

    @property
    def restored_step(self) -> int:
        """The step of the checkpoint that this attempt started from; 0 for none."""
        manifest = self._open().opening.manifest
        return 0 if manifest is None else manifest.step

    def phase(self, number: int) -> TrainingPhase:
        return self._phases[number]

    def _open(self) -> _OpenAttempt:
        if self._opened is None:
            store = open_store(self._url)
            if self.rank == 0:
                holder = f"{self.task} of attempt {self.attempt}, process {os.getpid()}"
                found = opening.open_first(
                    store,
                    self.attempt,
                    holder,
                    self._clock,
                    run_id=self.run_id,
                    saved=self._saved_before,
                )
            else:
                found = opening.join(store, self.attempt, self._clock, _JOIN_S, run_id=self.run_id)
            saver = AsyncSaver(
                store,
                found,
                task=self.task,
                rank=self.rank,
                tasks=self.tasks,
                policy=self.policy,
                clock=self._clock,
                about=self._about(),
                saved=self._saved,
            )
            phases = from_json(found.manifest.position["stages"]) if found.manifest is not None else []
            self._opened = _OpenAttempt(store, found, saver, [TrainingPhase(**phase) for phase in phases])
        return self._opened

    def begin(self, kind: str, signature: str) -> StartedPhase:
        """Begin the next phase; InputError if an earlier attempt had a different one at this position."""
        opened = self._open()
        number = len(self._phases)
        mine = TrainingPhase(kind=kind, signature=signature)
        self.base = sum(phase.steps for phase in self._phases)
        self._last_save = self._clock.monotonic()
        known = opened.before[number] if number < len(opened.before) else None
        if known is None:
            self._phases.append(mine)
            return StartedPhase(
                self, number, self._warm() if number == 0 and opened.opening.commit is None else None, {}
            )
        last = number == len(opened.before) - 1
        checkpoint = opened.opening.read(opened.store) if last else self._read(known.commit)
        # Differences between variables are reported by the restore, which lists them.
        if known.kind != kind or (checkpoint is None and known.signature != signature):
            other = f"was a {known.kind}" if known.kind != kind else "had different variables"
            raise InputError(
                f"The checkpoints of this run belong to a different program: phase {number + 1} of the training is a {kind}, "
                f"and {other} when they were written. Next: undo the change, or submit a new run."
            )
        if last and known.finished:
            # Later phases are saved in other manifests, which refer to this commit.
            known = replace(known, commit=opened.opening.commit or "")
        self._phases.append(known if last or known.finished else replace(known, finished=True))
        position = from_json(checkpoint.manifest.position["at"]) if last and checkpoint is not None else {}
        if known.finished and checkpoint is None:
            _log.info(
                f"an earlier attempt finished phase {number + 1} of the training, and its final checkpoint was not kept: the "
                "phase is skipped, and the variables keep their values"
            )
        return StartedPhase(self, number, checkpoint, position)

    def _read(self, commit: str) -> Checkpoint | None:
        return restore.read(self.store, commit, self.run_id) if commit else None

    def _warm(self) -> Checkpoint | None:
        if not self._warm_start:
            return None
        url, _, key = self._warm_start.rpartition("#")
        found = restore.read(open_store(url), key)
        return replace(found, blobs={})

    def due(self, *, epochs: bool) -> Literal["save", "epoch"] | None:
        """Return "save" if a checkpoint is due now, "epoch" if the end of this epoch is to be saved. For the chief only."""
        seconds = self._clock.monotonic() - self._last_save
        if self.policy.due_by_time(seconds):
            return "save"
        known = self._opened.saver.cost_s if self._opened is not None else None
        cost_s = _FIRST_S + self.size / _FIRST_BYTES_PER_S if known is None else known
        return "epoch" if epochs and self.policy.due_by_epoch(seconds, cost_s) else None

    def save(
        self, number: int, contents: Contents, *, at: Mapping[str, Any], steps: int, reason: str, **more: Any
    ) -> Ticket | None:
        """Begin to save phase `number` at position `at` after `steps` of it; None if the save was skipped."""
        phase = {name: more.pop(name) for name in ("finished", "history", "epochs") if name in more}
        self._phases[number] = mine = replace(self._phases[number], steps=steps, **phase)
        self._last_save = self._clock.monotonic()
        phases = [*self._phases[:number], mine]
        ticket = self._open().saver.save(
            contents,
            step=self.base + steps,
            position=to_json({"stages": [vars(phase) for phase in phases], "at": dict(at)}),
            reason=reason,
            keep=mine.finished,
            **more,
        )
        if ticket is not None:
            self._last = number, steps, ticket
        return ticket

    def has_saved(self, number: int, steps: int) -> bool:
        """True if a save of this step was begun and has not failed."""
        return self._last is not None and self._last[:2] == (number, steps) and not self._last[2].failed

    @property
    def saved_step(self) -> int:
        """The step of the last checkpoint that this task knows of; 0 for none."""
        acknowledged = self._last is not None and self._last[2].done and not self._last[2].failed
        return self._last[2].step if self._last is not None and acknowledged else self.restored_step

    def meet(self, steps: int, within_s: float) -> bool:
        """Report that this task can save after `steps` of the open phase; True once every task has reported so."""
        opened = self._open()
        found = opened.opening
        marks = [names.arrival(found.epoch, self.base + steps, found.nonce, rank) for rank in range(len(self.tasks))]
        if len(marks) == 1:
            return True
        until = self._clock.monotonic() + within_s
        opened.store.put_new(marks[self.rank], [b"arrived"])
        waiting = [mark for mark in marks if mark != marks[self.rank]]
        while True:
            waiting = [mark for mark in waiting if not _is_there(opened.store, mark)]
            if not waiting or self._clock.monotonic() >= until:
                return not waiting
            self._clock.sleep(_MEET_POLL_S)

    def finished(self, number: int, ticket: Ticket) -> None:
        """Wait until the end of a phase is saved, and note its commit."""
        commit = ticket.wait(None)
        self._phases[number] = replace(self._phases[number], commit=commit.key)

    def wait(self, timeout_s: float | None) -> None:
        """Wait for the save in progress; raises SaveFailedError if it failed."""
        if self._opened is not None:
            self._opened.saver.wait(timeout_s)

    def close(self, timeout_s: float | None) -> None:
        """Wait for the save in progress, then stop saving."""
        if self._opened is not None:
            self._opened.saver.close(timeout_s)


def _is_there(store: Store, key: str) -> bool:
    try:
        store.stat(key)
    except MissingError:
        return False
    return True


def to_json(value: Any) -> Any:
    """Return a value as strict JSON, which has no NaN or infinity."""
    if isinstance(value, float) and not math.isfinite(value):
        return {_NOT_FINITE: str(value)}
    if isinstance(value, Mapping):
        return {name: to_json(item) for name, item in value.items()}
    return [to_json(item) for item in value] if isinstance(value, (list, tuple)) else value


def from_json(value: Any) -> Any:
    """Reverse `to_json`."""
    if isinstance(value, dict):
        if value.keys() == {_NOT_FINITE}:
            return float(value[_NOT_FINITE])
        return {name: from_json(item) for name, item in value.items()}
    return [from_json(item) for item in value] if isinstance(value, list) else value


@dataclass(frozen=True)
class StartedPhase:
    """A phase that has begun: the state to start from (None for none), and the position in it ({} for its beginning)."""

    manager: CheckpointManager
    number: int
    checkpoint: Checkpoint | None
    at: Mapping[str, Any]

    @property
    def known(self) -> TrainingPhase:
        """The phase as an earlier attempt left it."""
        return self.manager.phase(self.number)

    @property
    def blobs(self) -> Mapping[str, bytes]:
        """What this task itself saved; {} if the number of tasks has changed."""
        if self.checkpoint is None or self.checkpoint.manifest.world.get("size") != len(self.manager.tasks):
            return {}
        return self.checkpoint.blobs.get(self.manager.rank, {})
