"""One task's checkpoints in one attempt: where it starts, and which part of the program it is in.

A program trains in stages: every `fit` is one, and every loop that `ctx.checkpoint()` protects. A stage is known by its
number, in the order in which the program reaches it, and by the variables that it trains. What an earlier attempt has
finished is not done again: its end is restored, and the program goes on.
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
from ..storage.store import Store, open_store
from . import names, opening, restore
from .contents import Contents
from .policy import Policy
from .restore import Checkpoint
from .saver import Saver, Ticket

# A task may import for minutes while the first one has opened the store already, and the other way round.
_JOIN_S = 600.0
_MEET_POLL_S = 0.1
_NOT_FINITE = "not finite"
# What a save takes, before one was measured.
_FIRST_S, _FIRST_BYTES_PER_S = 0.05, 1e8


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A stage as a manifest describes it.

    Args:
        kind: "fit" or "loop".
        signature: tells its variables' names, shapes and types from others.
        finished: True when there is nothing left to do in it.
        commit: the checkpoint of its end; "" while it is the manifest's own stage, or where it was not kept.
        steps: training steps that were done in it.
        history: what `fit` has returned.
        epochs: the numbers of the epochs in the history.
    """

    kind: str
    signature: str
    finished: bool = False
    commit: str = ""
    steps: int = 0
    history: Mapping[str, Any] | None = None
    epochs: Sequence[int] = ()


@dataclass(frozen=True)
class _Opened:
    """The open store, what the tasks have agreed to begin with, who saves, and the stages of earlier attempts."""

    store: Store
    opening: opening.Opening
    saver: Saver
    before: Sequence[Stage]


def signature(variables: Iterable[tuple[str, str, Sequence[int]]]) -> str:
    """Return what tells a set of variables from others, from the path, type and shape of each."""
    listed = sorted((path, dtype, list(shape)) for path, dtype, shape in variables)
    return hashlib.sha256(json.dumps(listed).encode()).hexdigest()[:16]


class Session:
    """The checkpoints of one task in one attempt. The store is opened at the first stage.

    Args:
        url: the store.
        run_id: the run.
        attempt: counts from 1.
        task: this task.
        tasks: all of them, the first decides.
        policy: when and what to keep.
        about: returns what every manifest says of the run.
        warm_start: a checkpoint of another run to start with, as `STORE#COMMIT`; "" for none.
        saved_before: a step that earlier attempts have saved, as the run's records know; None where they do not.
        saved: takes the step of this attempt's first checkpoint, once it is acknowledged; called from the background.
        clock: what time it is.
        log: takes lines for people.
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
        log: Callable[[str], None],
    ) -> None:
        self.policy = policy
        self.run_id = run_id
        self.task = task
        self.tasks = tuple(tasks)
        self.rank = self.tasks.index(task)
        self.log = log
        self._url = url
        self.attempt = attempt
        self._about = about
        self._warm_start = warm_start
        self._saved_before = saved_before
        self._saved = saved
        self._clock = clock
        self._opened: _Opened | None = None
        self._stages: list[Stage] = []
        self._last_save = clock.monotonic()
        self.base = 0
        # Of the state, in bytes.
        self.size = 0
        # The last save that was begun: of which stage, behind which step.
        self._last: tuple[int, int, Ticket] | None = None

    @property
    def store(self) -> Store:
        """The store, opened at the first use."""
        return self._open().store

    @property
    def stages(self) -> int:
        """How many stages have begun."""
        return len(self._stages)

    @property
    def restored_step(self) -> int:
        """The step of the checkpoint that this attempt began with; 0 for none."""
        manifest = self._open().opening.manifest
        return 0 if manifest is None else manifest.step

    def stage(self, number: int) -> Stage:
        """Return what is known of a stage that has begun."""
        return self._stages[number]

    def _open(self) -> _Opened:
        if self._opened is None:
            store = open_store(self._url)
            if self.rank == 0:
                holder = f"{self.task} of attempt {self.attempt}, process {os.getpid()}"
                found = opening.open_first(
                    store,
                    self.attempt,
                    holder,
                    self._clock,
                    log=self.log,
                    run_id=self.run_id,
                    saved=self._saved_before,
                )
            else:
                found = opening.join(store, self.attempt, self._clock, _JOIN_S, run_id=self.run_id)
            saver = Saver(
                store,
                found,
                task=self.task,
                rank=self.rank,
                tasks=self.tasks,
                policy=self.policy,
                clock=self._clock,
                about=self._about(),
                log=self.log,
                saved=self._saved,
            )
            stages = from_json(found.manifest.position["stages"]) if found.manifest is not None else []
            self._opened = _Opened(store, found, saver, [Stage(**stage) for stage in stages])
        return self._opened

    def begin(self, kind: str, signature: str) -> Begun:
        """Begin the next stage, and return what is known of it.

        Args:
            kind: "fit" or "loop".
            signature: of its variables.

        Raises:
            InputError: an earlier attempt had another stage in this place.
        """
        opened = self._open()
        number = len(self._stages)
        mine = Stage(kind=kind, signature=signature)
        self.base = sum(stage.steps for stage in self._stages)
        self._last_save = self._clock.monotonic()
        known = opened.before[number] if number < len(opened.before) else None
        if known is None:
            self._stages.append(mine)
            return Begun(self, number, self._warm() if number == 0 and opened.opening.commit is None else None, {})
        last = number == len(opened.before) - 1
        checkpoint = opened.opening.read(opened.store) if last else self._read(known.commit)
        # What differs in the variables is told where they are restored.
        if known.kind != kind or (checkpoint is None and known.signature != signature):
            other = f"was a {known.kind}" if known.kind != kind else "had other variables"
            raise InputError(
                f"The checkpoints of this run are of another program: stage {number + 1} of its training is a {kind}, and "
                f"{other} when they were made. Next: undo the change, or submit a new run."
            )
        if last and known.finished:
            # What comes after will be in other manifests.
            known = replace(known, commit=opened.opening.commit or "")
        self._stages.append(known if last or known.finished else replace(known, finished=True))
        position = from_json(checkpoint.manifest.position["at"]) if last and checkpoint is not None else {}
        if known.finished and checkpoint is None:
            self.log(
                f"stage {number + 1} of the training was finished by an earlier attempt, and its end is not kept: it is left "
                "out, and the variables stay as they are"
            )
        return Begun(self, number, checkpoint, position)

    def _read(self, commit: str) -> Checkpoint | None:
        return restore.read(self.store, commit, self.run_id) if commit else None

    def _warm(self) -> Checkpoint | None:
        if not self._warm_start:
            return None
        url, _, key = self._warm_start.rpartition("#")
        found = restore.read(open_store(url), key)
        return replace(found, blobs={})

    def due(self, *, epochs: bool) -> Literal["save", "epoch"] | None:
        """Return "save" when it is time for the next checkpoint, "epoch" where the end of this epoch is to be one.

        Only the first task is asked.

        Args:
            epochs: the loop has epochs, and the end of this one is not to be saved already.
        """
        seconds = self._clock.monotonic() - self._last_save
        if self.policy.due_by_time(seconds):
            return "save"
        known = self._opened.saver.cost_s if self._opened is not None else None
        cost_s = _FIRST_S + self.size / _FIRST_BYTES_PER_S if known is None else known
        return "epoch" if epochs and self.policy.due_by_epoch(seconds, cost_s) else None

    def save(
        self, number: int, contents: Contents, *, at: Mapping[str, Any], steps: int, reason: str, **more: Any
    ) -> Ticket | None:
        """Begin to save the state of a stage.

        Args:
            number: the stage, from 0.
            contents: its state.
            at: where in it the training is.
            steps: training steps in this stage so far.
            reason: "interval", "preempt", "final", "manual" or "failure".
            more: finished, history and epochs of the stage; metrics, downgrades and leave_out of the checkpoint.
        """
        stage = {name: more.pop(name) for name in ("finished", "history", "epochs") if name in more}
        self._stages[number] = mine = replace(self._stages[number], steps=steps, **stage)
        self._last_save = self._clock.monotonic()
        stages = [*self._stages[:number], mine]
        ticket = self._open().saver.save(
            contents,
            step=self.base + steps,
            position=to_json({"stages": [vars(stage) for stage in stages], "at": dict(at)}),
            reason=reason,
            keep=mine.finished,
            **more,
        )
        if ticket is not None:
            self._last = number, steps, ticket
        return ticket

    def has_saved(self, number: int, steps: int) -> bool:
        """True where a save of this step was begun, and has not failed."""
        return self._last is not None and self._last[:2] == (number, steps) and not self._last[2].failed

    @property
    def saved_step(self) -> int:
        """The step of the last checkpoint as far as this task knows; 0 for none."""
        acknowledged = self._last is not None and self._last[2].done and not self._last[2].failed
        return self._last[2].step if self._last is not None and acknowledged else self.restored_step

    def meet(self, steps: int, within_s: float) -> bool:
        """Say that this task is behind a step with all that it needs to save; True once every task is.

        Args:
            steps: of the open stage.
            within_s: how long the others may take.

        Raises:
            StoreError: it cannot be said.
        """
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
        """Wait until the end of a stage is saved, and remember where."""
        commit = ticket.wait(None)
        self._stages[number] = replace(self._stages[number], commit=commit.key)

    def wait(self, timeout_s: float | None) -> None:
        """Wait for what is being saved.

        Raises:
            SaveFailedError: it could not be saved.
        """
        if self._opened is not None:
            self._opened.saver.wait(timeout_s)

    def close(self, timeout_s: float | None) -> None:
        """Wait for what is being saved, and end."""
        if self._opened is not None:
            self._opened.saver.close(timeout_s)


def _is_there(store: Store, key: str) -> bool:
    try:
        store.stat(key)
    except MissingError:
        return False
    return True


def to_json(value: Any) -> Any:
    """Return a value as JSON that every reader knows: a loss may be NaN or infinite, and JSON has no such numbers."""
    if isinstance(value, float) and not math.isfinite(value):
        return {_NOT_FINITE: str(value)}
    if isinstance(value, Mapping):
        return {name: to_json(item) for name, item in value.items()}
    return [to_json(item) for item in value] if isinstance(value, (list, tuple)) else value


def from_json(value: Any) -> Any:
    """Return what `to_json` was given."""
    if isinstance(value, dict):
        if value.keys() == {_NOT_FINITE}:
            return float(value[_NOT_FINITE])
        return {name: from_json(item) for name, item in value.items()}
    return [from_json(item) for item in value] if isinstance(value, list) else value


@dataclass(frozen=True)
class Begun:
    """A stage that has begun.

    Args:
        session: where it belongs.
        number: counts from 0.
        checkpoint: the state to start with; None for none.
        at: where in the stage that was; {} for its beginning.
    """

    session: Session
    number: int
    checkpoint: Checkpoint | None
    at: Mapping[str, Any]

    @property
    def known(self) -> Stage:
        """What an earlier attempt has left of it."""
        return self.session.stage(self.number)

    @property
    def blobs(self) -> Mapping[str, bytes]:
        """What this very task has saved; {} where the tasks were others."""
        if self.checkpoint is None or self.checkpoint.manifest.world.get("size") != len(self.session.tasks):
            return {}
        return self.checkpoint.blobs.get(self.session.rank, {})
