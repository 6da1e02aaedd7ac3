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
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal

from ..errors import CorruptCheckpointError, InputError
from ..job.policies import Checkpoints, shortest_s
from ..logs import logger
from ..storage.registry import open_store
from ..storage.store import Store, exists
from . import names, opening, restore
from .contents import Contents
from .manifest import Manifest
from .opening import Env, OpenStore, TaskInfo
from .policy import Waits, due_by_epoch, most_ends, paced_s, training_cost_s
from .restore import Checkpoint
from .saver import AsyncSaver, Ticket

_log = logger("checkpoint")

# One task may spend minutes importing while another has already opened the store.
_JOIN_S = 600.0
_MEET_POLL_S = 0.1
_NOT_FINITE = "not finite"
# Assumed until one save was measured: how long it takes, and how long it computes.
_FIRST_S, _FIRST_BYTES_PER_S, _FIRST_CPU_BYTES_PER_S = 0.05, 1e8, 1e9


# The result of `fit`, and its epochs.
FitHistory = tuple[Mapping[str, Sequence[object]] | None, Sequence[int]]


@dataclass(frozen=True, kw_only=True)
class TrainingPhase:
    """A phase as a manifest describes it."""

    kind: str  # "fit" or "loop"
    signature: str  # of its variables
    finished: bool = False
    commit: str = ""  # the checkpoint of its end, if that was kept; unset for the manifest's own phase
    steps: int = 0
    history: Mapping[str, Sequence[object]] | None = None  # the result of `fit`
    epochs: Sequence[int] = ()  # the epochs of the history


@dataclass(frozen=True, kw_only=True)
class UnsavedState:
    """The state of a training phase between two steps, in memory."""

    phase: int  # counts from 0
    steps: int  # training steps of this phase so far
    contents: Contents  # its variables share the memory of the model's until those change
    at: Mapping[str, object]  # the position in the phase
    downgrades: tuple[str, ...] = ()  # its inexact parts
    taken_s: float = 0.0  # how long the training waited for it
    metrics: frozenset[str] = frozenset()  # paths of variables that may hold NaN: sums of metrics, which restart


def signature(variables: Iterable[tuple[str, str, Sequence[int]]]) -> str:
    """Return a hash of the path, type and shape of each variable."""
    listed = sorted((path, dtype, list(shape)) for path, dtype, shape in variables)
    return hashlib.sha256(json.dumps(listed).encode()).hexdigest()[:16]


class CheckpointManager:
    """The checkpoints of one task in one attempt. The store, at `url`, is opened at the first phase."""

    def __init__(self, info: TaskInfo, url: str, policy: Checkpoints, env: Env) -> None:
        self.info, self.policy, self.rank = info, policy, info.rank
        self._url, self._env, self._clock = url, env, env.clock
        self._saver: AsyncSaver | None = None
        self.phases: list[TrainingPhase] = []  # the begun ones
        self._trained: list[Callable[[], object]] = []  # one of the variables of each
        self._downgrades: list[str] = []
        self._last_save = self._clock.monotonic()
        self.base = 0
        self.size = 0  # bytes of the state
        self._interval_s = 0.0
        self._waits = Waits()
        self._last: tuple[int, int, Ticket] | None = None  # the last save: phase, steps, ticket

    @property
    def store(self) -> Store:
        return self._open().opened.store

    @property
    def restored_step(self) -> int:
        """The step of the checkpoint that this attempt started from; 0 for none."""
        manifest = self._open().opened.opening.manifest
        return 0 if manifest is None else manifest.step

    @property
    def has_checkpoint(self) -> bool:
        """True if an earlier attempt has saved a state."""
        return self._open().opened.opening.commit is not None

    def _open(self) -> AsyncSaver:
        if self._saver is None:
            info, store = self.info, open_store(self._url)
            if info.rank == 0:
                holder = f"{info.task} of attempt {info.attempt}, process {os.getpid()}"
                choice = opening.open_first(
                    store, info.attempt, holder, self._clock, run_id=info.run_id, saved=info.saved_before
                )
            else:
                choice = opening.join(store, info.attempt, self._clock, _JOIN_S, run_id=info.run_id)
            about = self._env.about()
            opened = OpenStore(store=store, opening=choice, info=info, policy=self.policy, env=self._env, about=about)
            self._saver = AsyncSaver(opened)
        return self._saver

    def begin(self, kind: str, signature: str, variable: object = None) -> StartedPhase:
        """Begin the next phase, with one of its variables; InputError if an earlier attempt had a different phase here."""
        self._trained.append((lambda: None) if variable is None else weakref.ref(variable))
        opened, number = self._open().opened, len(self.phases)
        manifest = opened.opening.manifest
        before, at = ([], {}) if manifest is None else position_of(manifest)
        mine = TrainingPhase(kind=kind, signature=signature)
        self.base = sum(phase.steps for phase in self.phases)
        self._last_save = self._clock.monotonic()
        earlier = before[number] if number < len(before) else None
        if earlier is None:
            self.phases.append(mine)
            is_fresh = number == 0 and opened.opening.commit is None
            return StartedPhase(self, number, self._warm() if is_fresh else None, {})
        last = number == len(before) - 1
        if last:
            checkpoint = opened.opening.read(opened.store)
        else:
            checkpoint = self._end_of(opened, earlier)
        # Differences between variables are reported by the restore, which lists them.
        if earlier.kind != kind or (checkpoint is None and earlier.signature != signature):
            other = f"was a {earlier.kind}" if earlier.kind != kind else "had different variables"
            raise InputError(
                f"The checkpoints of this run belong to a different program: phase {number + 1} of the training is a {kind}, "
                f"and {other} when they were written. Next: undo the change, or submit a new run."
            )
        if last and earlier.finished:
            # Later phases are saved in other manifests, which refer to this commit.
            earlier = replace(earlier, commit=opened.opening.commit or "")
        self.phases.append(earlier if last or earlier.finished else replace(earlier, finished=True))
        if earlier.finished and checkpoint is None and not self._downgrades:
            self._downgrades.append(
                f"earlier attempts finished phases from phase {number + 1} of the training on, but kept no ends of them: they "
                "are skipped with the values that their variables have now, which matters to the program's code after each"
            )
            _log.info(f"not exact: {self._downgrades[0]}")
        return StartedPhase(self, number, checkpoint, at if last and checkpoint is not None else {})

    def _end_of(self, opened: OpenStore, phase: TrainingPhase) -> Checkpoint | None:
        """Return the end of a phase that is over; None if retention has removed it."""
        if not phase.commit or not exists(opened.store, phase.commit):
            return None
        return restore.read(opened.store, phase.commit, self.info.run_id)

    def _warm(self) -> Checkpoint | None:
        if not self.info.warm_start:
            return None
        url, _, key = self.info.warm_start.rpartition("#")
        store = open_store(url)
        if not exists(store, key):
            raise InputError(
                "The checkpoint with which this run starts was removed, by the retention of its run or together with that run: "
                f"{key} of {url}. Next: submit again with a checkpoint_resume_from that exists (podlift checkpoints RUN)."
            )
        return replace(restore.read(store, key), blobs={})

    def due(self, *, epochs: bool) -> Literal["save", "epoch"] | None:
        """Return the save that is due: now, or at the end of this epoch. For the chief only."""
        every_s, seconds = self._interval(), self._clock.monotonic() - self._last_save
        # An automatic interval counts processor time, and not the time of a slow disk: no save waits for the disk.
        is_ready = not self.policy.is_paced or self._saver is None or not self._saver.busy
        if every_s is not None and seconds >= every_s and is_ready:
            return "save"
        cost_s = None if self._saver is None else self._waits.added_to(self._saver.cost_s)
        if cost_s is None:
            cost_s = _FIRST_S + self.size / _FIRST_BYTES_PER_S
        return "epoch" if epochs and due_by_epoch(self.policy, seconds, cost_s) else None

    def _interval(self) -> float | None:
        """Return the seconds from one save to the next; an automatic interval is logged and recorded."""
        if not self.policy.is_paced:
            return self.policy.seconds
        cpu_s = None if self._saver is None else self._waits.added_to(self._saver.cpu_s)
        cost_s = training_cost_s(self.size / _FIRST_CPU_BYTES_PER_S if cpu_s is None else cpu_s, self.size)
        every_s = paced_s(cost_s, shortest_s(self._url))
        if cpu_s is not None and not 0.5 < self._interval_s / every_s < 2:
            self._interval_s = every_s
            _log.info(
                f"a save costs the training {cost_s:.2g} s: the state is saved every {every_s:.0f} s, and a kill costs at "
                "most the work since the last save (checkpoint_every=auto)"
            )
            with suppress(OSError):  # of a full disk, which must not end the training
                self._env.paced(every_s)
        return every_s

    def save(
        self,
        state: UnsavedState,
        *,
        reason: str,
        metrics: Mapping[str, float] | None = None,
        leave_out: bool = False,
        end: FitHistory | None = None,
    ) -> Ticket | None:
        """Begin to save a state; None if the save was skipped. `end` marks the end of the phase."""
        number = state.phase
        mine = replace(self.phases[number], steps=state.steps)
        if end is not None:
            mine = replace(mine, finished=True, history=end[0], epochs=end[1])
        self.phases[number] = mine
        self._last_save = self._clock.monotonic()
        self._waits.add(state.taken_s)
        phases = [*self.phases[:number], mine]
        ticket = self._open().save(
            state.contents,
            step=self.base + state.steps,
            position=to_json({"stages": [vars(phase) for phase in phases], "at": state.at}),
            reason=reason,
            metrics=metrics,
            downgrades=(*self._downgrades, *state.downgrades),
            keep=mine.finished,
            leave_out=leave_out,
        )
        if ticket is not None:
            self._last = number, state.steps, ticket
        return ticket

    def has_saved(self, number: int, steps: int) -> bool:
        """True if a save of this step was begun and has not failed."""
        return self._last is not None and self._last[:2] == (number, steps) and not _failed(self._last[2])

    @property
    def saved_step(self) -> int:
        """The step of the last checkpoint that this task knows of; 0 for none."""
        ticket = None if self._last is None else self._last[2]
        if ticket is not None and ticket.done() and not _failed(ticket):
            return ticket.step
        checkpoint_id = names.parse_commit(self._open().opened.opening.commit or "")
        return 0 if checkpoint_id is None else checkpoint_id.step

    def meet(self, steps: int, within_s: float, ended: Callable[[], Collection[str]] = tuple) -> bool:
        """Report that this task can save after `steps` of the open phase; True once every task has reported so.

        False after `within_s` seconds, or as soon as a task has `ended` that has not reported.
        """
        opened, step, until = self._open().opened, self.base + steps, self._clock.monotonic() + within_s
        epoch, nonce = opened.opening.epoch, opened.opening.nonce
        waiting = {task: names.arrival(epoch, step, nonce, rank) for rank, task in enumerate(self.info.tasks)}
        if len(waiting) == 1 or opened.env.apart():
            return True
        opened.store.put_new(waiting.pop(self.info.tasks[self.rank]), [b"arrived"])
        while True:
            # Before its mark, which it may have left just before its end.
            gone = ended()
            waiting = {task: mark for task, mark in waiting.items() if not exists(opened.store, mark)}
            if not waiting or not waiting.keys().isdisjoint(gone) or self._clock.monotonic() >= until:
                return not waiting
            self._clock.sleep(_MEET_POLL_S)

    def finished(self, number: int, ticket: Ticket) -> None:
        """Wait until the end of a phase is saved, and note its commit."""
        self.phases[number] = replace(self.phases[number], commit=ticket.wait(None).key)
        alike = [index for index in range(number + 1) if self._is_like(index, number)]
        for index in alike[: -most_ends(self.size)]:
            self.phases[index] = replace(self.phases[index], commit="")

    def _is_like(self, number: int, other: int) -> bool:
        """True if both phases train the same variables, so that the end of one supersedes the end of the other."""
        variable = self._trained[other]()
        same = variable is not None and self._trained[number]() is variable
        return same and self.phases[number].signature == self.phases[other].signature

    def wait(self, timeout_s: float | None) -> None:
        """Wait for the save in progress; raises SaveFailedError if it failed."""
        if self._saver is not None:
            self._saver.wait(timeout_s)

    def wait_as_cost(self) -> None:
        """Wait for the save that has just begun, and count the wait as its cost."""
        start = self._clock.monotonic()
        self.wait(None)
        self._waits.prolong(self._clock.monotonic() - start)

    def close(self, timeout_s: float | None) -> None:
        """Wait for the save in progress, then stop saving."""
        if self._saver is not None:
            self._saver.close(timeout_s)


def _failed(ticket: Ticket) -> bool:
    return ticket.done() and ticket.exception() is not None


def position_of(manifest: Manifest) -> tuple[list[TrainingPhase], Mapping[str, Any]]:
    """Return the phases that a manifest describes, and the position in the last one, or raise CorruptCheckpointError."""
    try:
        position = from_json(manifest.position)
        phases, at = [TrainingPhase(**fields) for fields in position["stages"]], position["at"]
        good = isinstance(at, dict) and all(
            type(phase.steps) is int and (not phase.commit or names.parse_commit(phase.commit)) for phase in phases
        )
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError):
        good = False
    if not good:
        raise CorruptCheckpointError(f"The position in {manifest.key!r} was not written by a training of podlift.")
    return phases, at


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
    def record(self) -> TrainingPhase:
        """The phase as an earlier attempt left it."""
        return self.manager.phases[self.number]

    @property
    def blobs(self) -> Mapping[str, bytes]:
        """The blobs that this task itself saved; {} if the number of tasks has changed."""
        if self.checkpoint is None or self.checkpoint.manifest.world.get("size") != len(self.manager.info.tasks):
            return {}
        return self.checkpoint.blobs.get(self.manager.rank, {})
