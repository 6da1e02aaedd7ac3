"""The common part of `fit` and custom loops: which state is saved, when, and how training ends early."""

from __future__ import annotations

# `checkpoint` uses some of these: loaded before the program's folders are on the path, which may hold modules of that name.
import concurrent.futures  # noqa: F401
import json
import os
import platform
import queue  # noqa: F401
import secrets  # noqa: F401
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from ...clock import Clock
from ...job import cluster
from ...job.layout import RunPaths
from ...job.payload import Kill, Payload
from ...logs import logger
from ...process import free_memory
from ...records.events import PACED, SAVED, saved_step
from ...records.kills import Done, KillRecords
from ...records.recorder import read_events
from ...status import EXIT_CHECKPOINTED, continuation
from ...storage.registry import open_store
from ..account import CHECKPOINT
from ..rendezvous import Action, StepCoordinator
from . import rescue
from .warm_start import WarmStart

# The rest of `checkpoint` is imported at the first phase: a program that trains nothing starts in a sixth less time.
if TYPE_CHECKING:
    from ...checkpoint.manager import CheckpointManager, FitHistory, StartedPhase, UnsavedState
    from ...checkpoint.manifest import About
    from ...checkpoint.saver import Ticket
    from ..reporting import ProgressWriter

_log = logger("runtime")

Capture = Callable[[], tuple[dict[str, bytes], dict[str, object]]]


@dataclass(kw_only=True)
class AutoCheckpoint:
    """The checkpoints of one task. A training consists of phases: each `fit` and each custom loop is one."""

    make_manager: Callable[[], CheckpointManager]
    coordinator: StepCoordinator  # decides with the other tasks on the action after a step
    grace_s: float  # from a stop request to the end of the task
    record: Callable[..., None]  # writes a record of the run
    progress: ProgressWriter
    kill_points: KillPoints
    warm_start: WarmStart

    def __post_init__(self) -> None:
        self._phase: PhaseCheckpoints | None = None
        self.unsaved: UnsavedState | None = None  # the state after an exception, to be saved if it ends the program
        self._logged: set[str] = set()
        self.coordinator.save_due = self._due

    @cached_property
    def manager(self) -> CheckpointManager:
        """The manager of the checkpoints; it opens their store at the first phase."""
        return self.make_manager()

    @property
    def has_phases(self) -> bool:
        """True once the program trains."""
        return "manager" in vars(self) and bool(self.manager.phases)

    @property
    def is_fresh(self) -> bool:
        """True if the program has not trained yet, and no earlier attempt has saved a state."""
        return not self.has_phases and not self.manager.has_checkpoint

    def has_restored(self, variables: Iterable[object]) -> bool:
        """True if the phase in progress has restored one of these variables."""
        phase = self._phase
        return phase is not None and phase.restored and phase.holds(variables)

    def _due(self) -> Literal["save", "epoch"] | None:
        phase = self._phase
        # An epoch that already holds a save needs no other.
        return None if phase is None else self.manager.due(epochs=phase.has_epochs and not phase.due_save)

    def begin(self, kind: str, collect: Callable[[], Any]) -> PhaseCheckpoints:
        """Begin a phase of kind "fit" or "loop", which ends an earlier one; `collect` returns its current variables."""
        self.end()
        self.unsaved = None
        # Imported and used once here, so that the first save interrupts the training no longer than the next ones.
        from ...checkpoint.manager import signature
        from ...checkpoint.tf import loading, randomness, snapshot  # noqa: F401

        randomness.capture()
        variables = collect()
        arrays = snapshot.take(variables)
        self.manager.size = snapshot.size_of(arrays)
        some = snapshot.value_of(next(iter(variables.values()), None))
        start = self.manager.begin(kind, signature((a.path, a.dtype, a.shape) for a in arrays), some)
        if start.number == 0 and self.manager.info.attempt > 1 and self.manager.rank == 0:
            step = self.manager.restored_step
            self.record("continued", step=step)
            _log.info(continuation(self.manager.info.attempt, step))
        self._phase = PhaseCheckpoints(self, start, variables, collect)
        self._phase.guarded = snapshot.finite_weights(variables) if self.manager.rank == 0 else frozenset()
        self.coordinator.handle_sigterm()
        return self._phase

    def end(self) -> None:
        """End the current phase. Needed for custom loops, which do not report their end."""
        if self._phase is not None:
            self._phase.finish()

    def drop_phase(self) -> None:
        """End the current phase without saving it."""
        self._phase = None
        self.coordinator.reset_sigterm()

    def unsaved_state(self) -> UnsavedState | None:
        """Return the state that an exception left; None if there is nothing new that can be saved."""
        phase, state = self._phase, self.unsaved
        if phase is not None and not phase.in_step and phase.has_moved:
            # A custom loop.
            state = rescue.state_within(phase.state, self.grace_s / 2)
        return None if state is None or self.manager.has_saved(state.phase, state.steps) else state

    def log_once(self, sentence: str) -> None:
        if sentence not in self._logged:
            self._logged.add(sentence)
            _log.info(sentence)


def make(
    payload: Payload,
    task: str,
    coordinator: StepCoordinator,
    clock: Clock,
    record: Callable[..., None],
    progress: ProgressWriter,
) -> AutoCheckpoint:
    """Return the automatic checkpoints of a task."""
    paths = RunPaths(payload.run_url)
    together = cluster.in_step(payload.tasks)
    tasks = tuple(together) if task in together else (task,)
    # A container starts without records.
    events = read_events(paths, (*SAVED, "entry")) if os.path.isdir(paths.events) else []
    saved_before = saved_step(events, warm=bool(payload.warm_start))
    # The parent of the tasks' temporary folders, which this machine's tasks of the run share. The program may change TMPDIR.
    shared = os.path.dirname(os.environ["TMPDIR"])

    def make_manager() -> CheckpointManager:
        from ...checkpoint.manager import CheckpointManager
        from ...checkpoint.manifest import About
        from ...checkpoint.opening import Env, TaskInfo

        info = TaskInfo(
            run_id=payload.run_id,
            attempt=payload.attempt,
            task=task,
            tasks=tasks,
            warm_start=payload.warm_start,
            saved_before=saved_before,
        )

        def about() -> About:
            world = {"size": len(tasks), "tasks": list(tasks)}
            return About(world=world, versions=_versions(), code={"digest": payload.digest, "entry": payload.target})

        env = Env(
            clock=clock,
            about=about,
            saved=lambda step: record("saved", step=step),
            paced=lambda every_s: record(PACED, every_s=round(every_s, 1)),
            apart=coordinator.apart,
        )
        return CheckpointManager(info, payload.store or paths.store, payload.checkpoints, env)

    return AutoCheckpoint(
        make_manager=make_manager,
        coordinator=coordinator,
        grace_s=payload.limits.grace_s,
        record=record,
        progress=progress,
        kill_points=KillPoints(
            KillRecords(paths, open_store(payload.bucket_url) if payload.drill and payload.bucket_url else None),
            payload.attempt,
            task,
            payload.drill.kills if payload.drill else (),
        ),
        warm_start=WarmStart(payload.initial, payload.models, shared),
    )


def _versions() -> dict[str, str]:
    from ... import __version__

    loaded = {name: sys.modules.get(name) for name in ("tensorflow", "keras", "tf_keras", "numpy")}
    versions = {name: str(module.__version__) for name, module in loaded.items() if module is not None}
    return {"podlift": __version__, "python": platform.python_version(), **versions}


class PhaseCheckpoints:
    """The checkpoints of one phase of the training.

    Attributes:
        steps: training steps in this phase so far.
        at: the saved position in the phase; {} at the beginning.
        variables: the saved and restored variables, by path.
        finished: True if an earlier attempt has finished this phase.
        interrupted: True once the phase received a stop request.
        has_epochs: False for a loop that does not report the end of an epoch.
        in_step: True while the variables may be between two steps.
        restored: True once variables were restored.
    """

    def __init__(self, auto: AutoCheckpoint, start: StartedPhase, variables: Any, collect: Callable[[], Any]) -> None:
        self._auto = auto
        self._manager = auto.manager
        self._start = start
        self.variables = variables
        self._collect = collect
        self._collected_again = False
        self._downgrades: list[str] = []
        # A save that waits for the end of the epoch, because it is due or because it belongs there.
        self.due_save: Literal["", "save", "epoch"] = ""
        # Paths of weights that are to stay finite: some programs begin with others, such as the infinity of a minimum.
        self.guarded: frozenset[str] = frozenset()
        self.has_epochs = True
        self.in_step = self.restored = False
        self.interrupted = False
        self.at = start.at
        self.steps = self._from = start.record.steps
        self.finished = start.record.finished
        self.history = start.record.history
        self.epochs = list(start.record.epochs)
        # The state of this loop alone: blobs by name, and its position.
        self.capture: Capture = lambda: ({}, {})

    @property
    def blobs(self) -> Mapping[str, bytes]:
        """The blobs that this task saved at that position; {} at the beginning, and if the tasks have changed."""
        return self._start.blobs

    @property
    def has_moved(self) -> bool:
        """True once this attempt has done a step of the phase."""
        return self.steps > self._from and not self.finished

    def holds(self, variables: Iterable[object]) -> bool:
        """True if it saves one of these variables."""
        from ...checkpoint.tf.snapshot import value_of

        own = {id(value_of(variable)) for variable in self.variables.values()}
        return any(id(value_of(variable)) in own for variable in variables)

    def restore(self, *, again: bool = False) -> bool:
        """Restore variables and random generators; return False if there is nothing to restore.

        `again`: collect the variables once more, since there may be more now.
        """
        if again:
            self.variables = self._collect()
        checkpoint = self._start.checkpoint
        if checkpoint is None:
            return False
        from ...checkpoint.tf import loading, randomness

        own = {rank: blobs["own"] for rank, blobs in checkpoint.blobs.items() if "own" in blobs}
        tasks = len(self._manager.info.tasks)
        loading.load(self.variables, checkpoint.arrays, per_replica=own, rank=self._manager.rank, tasks=tasks)
        self.restored = True
        if "random" in self.blobs:
            randomness.restore(self.blobs["random"])
        step, number = checkpoint.manifest.step, self._start.number + 1
        what = "the state of another run"
        if self.at:
            what = f"step {self.steps}"
            self._auto.progress.begin(self._manager.base + self.steps)
        if self.finished:
            what = "its end"
        self._auto.record("restored", step=step, phase=number)
        _log.info(f"restored {what} of phase {number} of the training from the checkpoint of step {step}")
        size = checkpoint.manifest.world.get("size")
        if self.at and size != tasks:
            self.downgrade(
                f"the checkpoint is of {size} tasks, and there are {tasks}: random generators restart, and the data "
                "continues after the same number of global batches"
            )
        elif self.at and "random" not in self.blobs:
            self.downgrade(
                "the checkpoint holds the state of the first task alone, because the tasks trained without a connection: this "
                "task continues with its variables and after the same number of batches, and its random generators restart"
            )
        return True

    def downgrade(self, sentence: str) -> None:
        """Log once why the training will not continue exactly as if it had never been interrupted."""
        if sentence not in self._downgrades:
            self._downgrades.append(sentence)
            _log.info(f"not exact: {sentence}")

    def count(self, count: int) -> None:
        """Count completed training steps."""
        self.steps += count
        self.in_step = False

    def settle(self, count: int, *, hold: bool = False) -> Action | None:
        """Write the checkpoint that is due after the last `count` steps, if any, and return "stop" if the loop has to end.

        With `hold`, the save waits for the end of the epoch, which follows at once. A preempted task does not return.
        """
        from ...checkpoint.policy import due_by_steps

        self._auto.kill_points.reached("step", self._manager.base + self.steps)
        action = self._auto.coordinator.step()
        if action == "epoch" and self.due_save != "save":
            self.due_save = "epoch"
        action = None if action == "epoch" else action
        due = action is not None or due_by_steps(self._manager.policy, self.steps - count, self.steps)
        if action == "stop" and self.interrupted:
            return action  # a loop that continues all the same
        self.interrupted = action == "stop"
        if action == "preempt":
            # Requests to the store have only the time that this task still has.
            self._manager.store.set_deadline(self._auto.grace_s)
            with self._auto.progress.during(CHECKPOINT):
                self._save("preempt")
                self._manager.wait(self._auto.grace_s)
            _log.info("the state is saved: this task exits, to be restarted")
            sys.exit(EXIT_CHECKPOINTED)
        if due and not (hold and action in (None, "save")):
            self._save("manual" if action == "stop" else "interval", guard=self._manager.policy.is_paced)
        elif due:
            self.due_save = "save"
        return action

    def epoch_over(self, *, metrics: Mapping[str, float] | None = None, save: bool = True) -> None:
        """Write the checkpoint that was held for the end of the epoch, or is compared by its metrics, unless the phase ends."""
        self._auto.kill_points.reached("epoch")
        due, self.due_save = self.due_save, ""
        compared = self._manager.policy.best is not None and metrics
        if save and (due or compared):
            self._save("interval", metrics, guard=not compared and (due == "epoch" or self._manager.policy.is_paced))

    def _is_finite(self) -> bool:
        """Return False if weights that were finite hold NaN or infinity now: such a state must not replace a good one."""
        from ...checkpoint.tf import snapshot

        arrays = snapshot.take(self.variables) if self.guarded else ()
        wrong = snapshot.first_non_finite(array for array in arrays if array.path in self.guarded)
        if wrong is not None:
            self._auto.log_once(f"{wrong} holds NaN or infinity: the state is not saved until it is finite again")
        return wrong is None

    def finish(self, *, metrics: Mapping[str, float] | None = None) -> None:
        """Save the end of the phase with the metrics of its last epoch, unless it was interrupted, and wait for it."""
        with self._auto.progress.during(CHECKPOINT):
            if self.interrupted:
                self._manager.wait(None)
            elif not self.finished:
                self.finished = True
                ticket = self._save("final", metrics, end=(self.history, self.epochs))
                if ticket is not None:
                    self._manager.finished(self._start.number, ticket)
        self._auto.drop_phase()

    def save_now(self, metrics: Mapping[str, float]) -> None:
        """Save, and wait until that is done."""
        with self._auto.progress.during(CHECKPOINT):
            self._save("manual", metrics)
            self._manager.wait(None)

    def _save(
        self,
        reason: str,
        metrics: Mapping[str, float] | None = None,
        *,
        guard: bool = False,
        end: FitHistory | None = None,
    ) -> Ticket | None:
        from ...checkpoint.tf import snapshot

        with self._auto.progress.during(CHECKPOINT):
            if reason != "interval":
                # This save must not be skipped because another one is still running.
                self._manager.wait(None)
            wait_start = time.monotonic()
            leave_out = guard and reason == "interval" and not self._is_finite()
            state = self.state(wait_start=wait_start)
            size = snapshot.size_of(state.contents.arrays)
            # Before the save: beside its threads, each of these files takes ten times as long to read.
            short = free_memory.is_short(size, free_memory.available())
            ticket = self._manager.save(state, reason=reason, metrics=metrics, leave_out=leave_out, end=end)
            self._auto.kill_points.reached("save")
            if ticket is not None and short:
                # A step would copy everything it changes: better slow than killed.
                self._auto.log_once(
                    f"memory is short, and the state has {size / 1e6:.0f} MB: training waits for its save"
                )
                del state
                self._manager.wait_as_cost()
            return ticket

    def state(self, capture: Capture | None = None, *, wait_start: float | None = None) -> UnsavedState:
        """Return the current state. Call it between two steps only; `capture` replaces `self.capture`.

        `wait_start`: when the training began to wait for it, if that is not now.
        """
        wait_start = time.monotonic() if wait_start is None else wait_start
        from ...checkpoint.contents import Contents
        from ...checkpoint.manager import UnsavedState
        from ...checkpoint.tf import loading, randomness, snapshot

        if not self._collected_again:
            # An optimizer that was not built makes its slots in the first step.
            self.variables, self._collected_again = self._collect(), True
        blobs, at = (capture or self.capture)()
        own = loading.replica_values(self.variables, tasks=len(self._manager.info.tasks))
        all_blobs = {"own": own, "random": randomness.capture(), **blobs}
        return UnsavedState(
            phase=self._start.number,
            steps=self.steps,
            contents=Contents(arrays=snapshot.take(self.variables), blobs=all_blobs),
            at=json.loads(json.dumps(at)),
            downgrades=tuple(self._downgrades),
            taken_s=time.monotonic() - wait_start,
        )


# The emulator reads the announcement of a kill at once.
_EMULATOR_WAIT_S = 60.0


class KillPoints:
    """Kills this task at the points that a drill has chosen: each once, in the first attempt that reaches it.

    `kills` are the kills of all tasks.
    """

    def __init__(self, records: KillRecords, attempt: int, task: str, kills: Sequence[Kill]) -> None:
        self._records, self._attempt, self._task = records, attempt, task
        self._step: int | None = None
        self._pending = {
            index: kill for index, kill in enumerate(kills) if kill.task == task and records.done(index) is None
        }
        self._counts = records.counts(task) if self._pending else {}

    def reached(self, point: str, number: int | None = None) -> None:
        """Kill this task if a kill is due; `number` is the step, or how often the point was reached, counted if None."""
        if not self._pending:
            return
        if point == "step":
            self._step = number
        if number is None:
            self._counts[point] = number = self._counts.get(point, 0) + 1
            self._records.write_counts(self._task, self._counts)
        # An execution of several steps may skip a number: the kill follows after the execution.
        due = [index for index, kill in self._pending.items() if kill.point == point and kill.number <= number]
        if not due:
            return
        kill = self._pending.pop(due[0])
        self._records.add(due[0], Done(step=self._step, attempt=self._attempt, time=time.time()))
        if kill.what == "process":
            os.kill(os.getpid(), signal.SIGKILL)
        self._announce(kill)

    def _announce(self, kill: Kill) -> None:
        """Let the emulator do it, which reads the output. A preempted machine has some time left."""
        sys.stdout.flush()
        # In one piece, and not at the end of another line.
        os.write(1, f"\n{kill.announcement}\n".encode())
        until = time.monotonic() + _EMULATOR_WAIT_S
        while kill.what != "machine" and time.monotonic() < until:
            time.sleep(0.05)
        if kill.what != "machine":
            raise RuntimeError(f"The emulator did not end this container within {_EMULATOR_WAIT_S:g} s of {kill}.")
