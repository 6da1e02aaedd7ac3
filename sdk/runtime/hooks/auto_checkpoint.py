"""What is saved of a training loop, when, and how it ends early: `fit` and loops of the program's own have it in common."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from ...records.events import SAVED, saved_step
from ...records.recorder import read_events
from ...spec import cluster
from ...spec.layout import RunPaths
from ...status import EXIT_CHECKPOINTED, continuation
from ..rendezvous.files import Action, Agreement
from .kill_points import Kills

if TYPE_CHECKING:
    from ...checkpoint.manager import CheckpointManager, StartedPhase
    from ...checkpoint.saver import Ticket
    from ...clock import Clock
    from ...spec.payload import Payload
    from .rescue import State

Capture = Callable[[], tuple[dict[str, bytes], dict[str, Any]]]


class Protection:
    """The checkpoints of one task, and its agreement with the others about when.

    Args:
        session: where they are saved; it is opened at the first stage.
        agreement: behind which step all tasks do what.
        grace_s: what the task has to end when it was asked to, in seconds.
        log: takes lines for people.
        record: takes what belongs into the run's records.
        resumed: takes the number of steps that an earlier attempt has done.
        kills: of this task on purpose.
    """

    def __init__(
        self,
        session: CheckpointManager,
        agreement: Agreement,
        *,
        grace_s: float,
        log: Callable[[str], None],
        record: Callable[..., None],
        resumed: Callable[[int], None],
        kills: Kills,
    ) -> None:
        self.session = session
        self.agreement = agreement
        self.log = log
        self.record = record
        self.resumed = resumed
        self.kills = kills
        self._grace_s = grace_s
        self._open: Protected | None = None
        self._left: State | None = None
        self._told: set[str] = set()
        agreement.ask_when_due(self._due)

    def _due(self) -> Literal["save", "epoch"] | None:
        return None if self._open is None else self.session.due(epochs=self._open.wants_epochs)

    def begin(self, kind: str, collect: Callable[[], Any]) -> Protected:
        """Begin a stage of the training; an earlier one ends here.

        Args:
            kind: "fit" or "loop".
            collect: returns the variables that there are, as `snapshot.variables_of` finds them.
        """
        self.end()
        self._left = None
        # Loaded and used once here, where nobody waits: the first save stops the training as little as the next.
        from ...checkpoint import contents  # noqa: F401
        from ...checkpoint.manager import signature
        from ...checkpoint.tf import loading, randomness, replicas, snapshot  # noqa: F401

        randomness.capture()

        variables = collect()
        arrays = snapshot.take(variables)
        self.session.size = snapshot.size_of(arrays)
        begun = self.session.begin(kind, signature((a.path, a.dtype, a.shape) for a in arrays))
        self._tell_where(begun)
        self._open = Protected(self, begun, variables, collect)
        self.agreement.listen()
        return self._open

    def _tell_where(self, begun: StartedPhase) -> None:
        """Say where an attempt after the first begins, in one task."""
        if begun.number == 0 and self.session.attempt > 1 and self.session.rank == 0:
            step = self.session.restored_step
            self.record("continued", step=step)
            self.log(continuation(self.session.attempt, step))

    def end(self) -> None:
        """End the stage that is open: a loop of the program's own does not say when it is over."""
        if self._open is not None:
            self._open.finish()

    def forget(self) -> None:
        """Let the open stage be as it is."""
        self._open = None
        self.agreement.deaf()

    def leave_behind(self, state: State | None) -> None:
        """Note what an exception has left of the open stage: it is saved if the program ends by it."""
        self._left = state

    def left(self) -> State | None:
        """Return what an exception has left of the training, None where there is nothing new that can be saved."""
        from .rescue import bounded

        if self._open is not None and not self._open.in_step:
            # A loop of the program's own.
            bounded(self._look_at_loop, self._grace_s / 2)
        left = self._left
        return None if left is None or self.session.has_saved(left.stage, left.steps) else left

    def _look_at_loop(self) -> None:
        stage = self._open
        try:
            self._left = None if stage is None or not stage.has_moved else stage.state()
        except Exception as error:
            self.log(f"what is left of the training cannot be saved: {type(error).__name__}: {error}")

    def rescue(self, state: State | None, within_s: float) -> None:
        """Save what an exception has left, and end the checkpoints; all of it within so many seconds."""
        from . import rescue

        rescue.save(self.session, state, within_s, self.log)

    def tell_once(self, sentence: str) -> None:
        """Log a sentence, the first time."""
        if sentence not in self._told:
            self._told.add(sentence)
            self.log(sentence)

    def set_deadline(self) -> None:
        """Let nothing that is asked of the store take longer than this task still has."""
        self.session.store.set_deadline(self._grace_s)

    def leave(self) -> NoReturn:
        """End this task, whose state is on its way, with the exit code that asks for another start."""
        self.session.wait(self._grace_s)
        self.log("the state is saved: this task ends, to be started again")
        sys.exit(EXIT_CHECKPOINTED)


def make(
    payload: Payload,
    task: str,
    agreement: Agreement,
    clock: Clock,
    log: Callable[[str], None],
    record: Callable[..., None],
    resumed: Callable[[int], None],
) -> Protection:
    """Return the protection of a task.

    Args:
        payload: the run's.
        task: its name.
        agreement: with the other tasks.
        clock: what time it is.
        log: takes lines for people.
        record: takes what belongs into the run's records.
        resumed: takes the number of steps that an earlier attempt has done.
    """
    from ...checkpoint.manager import CheckpointManager
    from ...checkpoint.policy import Policy

    known = {field.name for field in fields(Policy)}
    paths = RunPaths(payload.run_url)
    together = cluster.in_step(payload.tasks)
    tasks = together if task in together else (task,)
    session = CheckpointManager(
        payload.store or paths.store,
        run_id=payload.run_id,
        attempt=payload.attempt,
        task=task,
        tasks=tasks,
        policy=Policy(**{name: value for name, value in payload.checkpoints.items() if name in known}),
        about=lambda: {
            "run_id": payload.run_id,
            "world": {"size": len(tasks), "tasks": list(tasks)},
            "versions": _versions(),
            "code": {"digest": payload.digest, "entry": payload.target},
        },
        warm_start=payload.warm_start,
        saved_before=_saved_before(paths, payload),
        saved=lambda step: record("saved", step=step),
        clock=clock,
        log=log,
    )
    kills = Kills(paths, payload.attempt, task, payload.drill.get("kills", ()))
    return Protection(session, agreement, grace_s=payload.grace_s, log=log, record=record, resumed=resumed, kills=kills)


def _saved_before(paths: RunPaths, payload: Payload) -> int | None:
    # A container begins with no records at all.
    events = read_events(paths, SAVED) if os.path.isdir(paths.events) else []
    return saved_step(events, warm=bool(payload.warm_start))


def _versions() -> dict[str, str]:
    from ... import __version__

    loaded = {name: sys.modules.get(name) for name in ("tensorflow", "keras", "tf_keras", "numpy")}
    found = {name: str(module.__version__) for name, module in loaded.items() if module is not None}
    return {"podlift": __version__, "python": platform.python_version(), **found}


class Protected:
    """One stage of the training.

    Attributes:
        steps: training steps in this stage so far.
        at: where in the stage the training goes on, as it was saved; {} at the beginning.
        variables: what is saved and restored, by path.
        finished: True where an earlier attempt has left nothing to do.
        interrupted: True once the stage was told to end.
        has_epochs: False for a loop that does not say when an epoch is over.
        in_step: True while the variables may be between those of one step and the next.
    """

    def __init__(self, protection: Protection, begun: StartedPhase, variables: Any, collect: Callable[[], Any]) -> None:
        self._protection = protection
        self._session = protection.session
        self._begun = begun
        self.variables = variables
        self._collect = collect
        self._complete = False
        self._downgrades: list[str] = []
        # What waits for the end of the epoch: a save that is due, or one that belongs there.
        self._held: Literal["", "save", "epoch"] = ""
        self.has_epochs = True
        self.in_step = False
        self.interrupted = False
        self.at: Mapping[str, Any] = begun.at
        self.steps = self._from = begun.known.steps
        self.finished = begun.known.finished
        self.history = begun.known.history
        self.epochs = list(begun.known.epochs)
        # What this loop alone knows: blobs by name, and where it is.
        self.capture: Capture = lambda: ({}, {})

    @property
    def blobs(self) -> Mapping[str, bytes]:
        """What this task has saved at that point; {} at the beginning, and where the tasks were others."""
        return self._begun.blobs

    @property
    def wants_epochs(self) -> bool:
        """True where the end of this epoch may be saved, and is not to be saved already."""
        return self.has_epochs and not self._held

    @property
    def has_moved(self) -> bool:
        """True once this attempt has done a step of the stage."""
        return self.steps > self._from and not self.finished

    def collect(self) -> None:
        """Look for the variables again: there may be more by now."""
        self.variables = self._collect()

    def restore(self) -> bool:
        """Put the saved values into the variables and the random generators; False where there is nothing to put."""
        checkpoint = self._begun.checkpoint
        if checkpoint is None:
            return False
        from ...checkpoint.tf import loading, randomness

        own = {rank: blobs["own"] for rank, blobs in checkpoint.blobs.items() if "own" in blobs}
        tasks = len(self._session.tasks)
        loading.load(self.variables, checkpoint.arrays, own=own, rank=self._session.rank, tasks=tasks)
        if "random" in self.blobs:
            randomness.restore(self.blobs["random"])
        manifest = checkpoint.manifest
        what = "its end" if self.finished else f"step {self.steps}" if self.at else "the state of another run"
        if self.at:
            self._protection.resumed(self._session.base + self.steps)
        self._protection.record("restored", step=manifest.step, stage=self._begun.number + 1)
        self._protection.log(
            f"restored {what} of stage {self._begun.number + 1} of the training from the checkpoint of step {manifest.step}"
        )
        for sentence in self._lost():
            self.downgrade(sentence)
        return True

    def _lost(self) -> list[str]:
        manifest = self._begun.checkpoint.manifest if self._begun.checkpoint is not None else None
        if manifest is None or not self.at or manifest.world.get("size") == len(self._session.tasks):
            return []
        return [
            f"the checkpoint is of {manifest.world.get('size')} tasks, and there are {len(self._session.tasks)}: random "
            "generators start anew, and the data goes on behind as many global batches"
        ]

    def downgrade(self, sentence: str) -> None:
        """Say that the training will not go on exactly as if it had never been interrupted, and why, once."""
        if sentence not in self._downgrades:
            self._downgrades.append(sentence)
            self._protection.log(f"not exact: {sentence}")

    def stepped(self, count: int = 1, *, hold: bool = False) -> Action | None:
        """Note that training steps are over, and save what is to be saved behind them; as `count`, then `settle`."""
        self.count(count)
        return self.settle(count, hold=hold)

    def count(self, count: int) -> None:
        """Note that training steps are over."""
        self.steps += count
        self.in_step = False

    def settle(self, count: int, *, hold: bool = False) -> Action | None:
        """Save what is to be saved behind the steps that were counted last.

        Args:
            count: how many.
            hold: True where nothing can be saved now, since the epoch's end comes at once.

        Returns "stop" where the loop is to end; a task whose machine is wanted back does not return.
        """
        self._protection.kills.at("step", self._session.base + self.steps)
        action = self._protection.agreement.step()
        if action == "epoch":
            self._held, action = self._held or "epoch", None
        due = action is not None or self._session.policy.due_by_steps(self.steps - count, self.steps)
        if action == "stop" and self.interrupted:
            return action  # a loop that goes on all the same
        self.interrupted = action == "stop"
        if action == "preempt":
            self._protection.set_deadline()
            self._save("preempt")
            self._protection.leave()
        if due and not (hold and action in (None, "save")):
            self._save("manual" if action == "stop" else "interval")
        elif due:
            self._held = "save"
        return action

    def epoch_over(self, *, metrics: Mapping[str, float] | None = None, save: bool = True) -> None:
        """Save what was held back, what is to be compared by its metrics, and the end of the epoch where that is wanted.

        Args:
            metrics: of the epoch.
            save: False where the stage ends here anyway.
        """
        self._protection.kills.at("epoch")
        held, self._held = self._held, ""
        if not save:
            return
        compared = self._session.policy.best is not None and metrics
        if held == "epoch" and not compared:
            self._save("interval", metrics=dict(metrics or {}), leave_out=not self._is_sound())
        elif held or compared:
            self._save("interval", metrics=dict(metrics or {}))

    def _is_sound(self) -> bool:
        """False where the weights are no numbers any more: such a state pushes no good one out by itself."""
        from ...checkpoint.tf import finite, snapshot

        wrong = finite.first_non_finite(snapshot.take(self.variables)) if self._session.rank == 0 else None
        if wrong is not None:
            self._protection.tell_once(f"{wrong} holds NaN or infinity: ends of epochs are not saved while that is so")
        return wrong is None

    def finish(self, *, metrics: Mapping[str, float] | None = None) -> None:
        """Save the end of the stage, unless it was told to end and goes on another time, and wait until that is done.

        Args:
            metrics: of its last epoch.
        """
        if not self.finished and not self.interrupted:
            self.finished = True
            more = {"history": self.history, "epochs": self.epochs, "metrics": dict(metrics or {})}
            ticket = self._save("final", finished=True, **more)
            if ticket is not None:
                self._session.finished(self._begun.number, ticket)
        elif self.interrupted:
            self._session.wait(None)
        self._protection.forget()

    def save_now(self) -> None:
        """Save, and wait until that is done."""
        self._save("manual")
        self._session.wait(None)

    def _save(self, reason: str, **more: Any) -> Ticket | None:
        from ...checkpoint import memory
        from ...checkpoint.tf import snapshot

        if reason != "interval":
            # What must be saved is not left out because something else is being saved.
            self._session.wait(None)
        state = self.state()
        ticket = self._session.save(
            state.stage,
            state.contents,
            at=state.at,
            steps=state.steps,
            reason=reason,
            downgrades=state.downgrades,
            **more,
        )
        self._protection.kills.at("save")
        size = snapshot.size_of(state.contents.arrays)
        if ticket is not None and memory.is_short(size, memory.available()):
            # A step would make a second copy of what it changes: better slow than killed.
            self._protection.tell_once(
                f"little memory is left, and the state has {size / 1e6:.0f} MB: training waits until it is saved"
            )
            del state
            self._session.wait(None)
        return ticket

    def state(self, capture: Capture | None = None) -> State:
        """Return the state as it is now; call it between two steps only.

        Args:
            capture: of what this loop alone knows; `self.capture` where none is given.
        """
        from ...checkpoint.contents import Contents
        from ...checkpoint.tf import randomness, replicas, snapshot
        from .rescue import State

        if not self._complete:
            # An optimizer that nobody has built makes its slots in the first step.
            self.variables, self._complete = self._collect(), True
        blobs, at = (capture or self.capture)()
        own = replicas.replica_values(self.variables, tasks=len(self._session.tasks))
        given = {"own": own, "random": randomness.capture(), **blobs}
        return State(
            stage=self._begun.number,
            steps=self.steps,
            contents=Contents(arrays=snapshot.take(self.variables), blobs=given),
            at=json.loads(json.dumps(at)),
            downgrades=tuple(self._downgrades),
        )
