"""A Run: the handle of what exists. Everything it says is read from the run's directory when it is asked."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from . import backends
from .backends.base import LogLine
from .backends.local import remote
from .checkpoint import run_checkpoints
from .checkpoint.catalog import CheckpointInfo
from .clock import Clock, SystemClock
from .errors import (
    CorruptRunError,
    InputError,
    RunCancelledError,
    RunCheckpointedError,
    RunError,
    RunFailedError,
    StoreError,
    WaitTimeoutError,
)
from .packaging.paths import destination
from .planning.roots import configured_root
from .records.events import Event, fold
from .records.explain import About, explain
from .records.recorder import has_ended, position, read_events, read_metrics, read_telling
from .spec.layout import RunPaths
from .spec.plan import Plan
from .status import Progress, State, Status
from .storage import trees

_POLL_S = 0.1
# How often a bucket is asked for the last checkpoint.
_ASK_S = 5.0


@dataclass(frozen=True, kw_only=True)
class Result:
    """What a run that succeeded has left.

    Args:
        value: what the entry function returned in the first task; None for a script.
        metrics: the last value of every metric, by name.
        run_dir: the run's directory.
        model_dir: where the program was told to put its model (`AIP_MODEL_DIR`).
        checkpoint_dir: likewise (`AIP_CHECKPOINT_DIR`).
        tensorboard_dir: likewise (`AIP_TENSORBOARD_LOG_DIR`).
        outputs_dir: what the first task left: `work/` and `model/`; there is no such folder where it left nothing.
        logs: the log file of every task of the last attempt; none where a cloud keeps them: `Run.logs` reads those too.
    """

    value: Any
    metrics: dict[str, float | None]
    run_dir: str
    model_dir: str
    checkpoint_dir: str
    tensorboard_dir: str
    outputs_dir: str
    logs: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class RunInfo:
    """One line of `runs()`.

    Args:
        id: the run's id.
        url: its directory.
        status: how it is; None for a directory that cannot be read.
        problem: why it cannot; "" for a sound one.
        backend: who runs it; "" where its plan does not say.
        metrics: the last value of every metric, by name.
        metric: which of them tells most: what `Checkpoints(best)` names, else val_loss, else loss, else the first; "" for none.
    """

    id: str
    url: str
    status: Status | None
    problem: str = ""
    backend: str = ""
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    metric: str = ""

    def duration_s(self, now: float) -> float | None:
        """Return how long the run has taken since its submit, in seconds; None where nobody knows.

        Args:
            now: unix time in seconds, where the run still goes on.
        """
        if self.status is None or not self.status.created:
            return None
        return max(0.0, (self.status.since if self.status.state.terminal else now) - self.status.created)


class Run:
    """A run, wherever it is and whoever started it.

    Usage: `run = sdk.attach("digits-k3f9aa"); run.wait()`

    Attributes:
        plan: what it executes.
        id: its id.
        url: its directory.
    """

    def __init__(self, plan: Plan, clock: Clock | None = None) -> None:
        self.plan = plan
        self._clock = clock or SystemClock()
        self._backend = backends.load(plan.backend)
        self._far = self._backend.remote(plan, self._clock)
        self._cloud = plan.backend in backends.IN_CLOUD
        self._saved: tuple[float, tuple[int, float] | None] | None = None

    @property
    def id(self) -> str:
        return self.plan.run_id

    @property
    def url(self) -> str:
        return self.plan.url

    def __repr__(self) -> str:
        return f"Run({self.url!r})"

    def status(self) -> Status:
        """Return how the run is doing now, or raise CorruptRunError where its records are damaged."""
        with self._sound():
            # Looked at before the records: a supervisor that ends in between has written its verdict.
            supervised = self._supervised()
            status = self._told(fold(read_telling(self.plan.paths), supervisor_alive=supervised))
            step, time = self._newest(fresh=status.state.terminal) or (None, None)
            return replace(status, saved_step=step, saved_at=time)

    def progress(self) -> Progress | None:
        """Return how far the training is, also within an epoch: `print(run.progress())`; None while that is unknown.

        On the machine of a run it is as of now; one in a bucket says it every ten seconds.
        """
        if self._far is not None:
            return self._far.progress()
        return position(self.plan.paths, self.plan.tasks[0])

    def why(self) -> str:
        """Return what a person needs to know: how the run is, since when, why, what it waits for, and what to type next.

        Usage: `print(run.why())`, while it goes on or whenever it has ended, from any process.

        Raises:
            CorruptRunError: its records are damaged.
        """
        with self._sound():
            events, status = self._look(logs=True)
            step, time = self._newest(fresh=status.state.terminal) or (None, None)
            status = replace(status, saved_step=step, saved_at=time)
            about = About(
                self._ref(),
                self.plan.paths,
                self.plan.tasks,
                self._clock.now(),
                cloud=self._cloud,
                generated=bool(self.plan.generated),
            )
            return explain(events, status, about)

    def wait(self, timeout_s: float | None = None) -> Status:
        """Return the last status once the run has ended, however it ended.

        Args:
            timeout_s: at most this long, in seconds; None waits for ever.

        Raises:
            WaitTimeoutError: it was still going. The run goes on.
        """
        until = None if timeout_s is None else self._clock.monotonic() + timeout_s
        while True:
            status = self.status()
            if status.state.terminal:
                if self.plan.local and self._far is None:
                    remote.settle(self.plan, self._clock, until)
                return status
            if until is not None and self._clock.monotonic() >= until:
                raise WaitTimeoutError(
                    f"The run {self.id} is still {status.state.value} after {timeout_s} s; it goes on."
                )
            self._clock.sleep(_POLL_S)

    def result(self, timeout_s: float | None = None) -> Result:
        """Wait for the end and return what the run has left.

        Args:
            timeout_s: as for `wait`.

        Raises:
            RunFailedError: the program failed; the message holds its traceback.
            RunCancelledError: somebody cancelled the run.
            RunCheckpointedError: it saved its state and asks to be started again.
            RunError: the infrastructure failed.
            WaitTimeoutError: as for `wait`.
        """
        status = self.wait(timeout_s)
        if status.state is not State.SUCCEEDED:
            raise _error(self, status)
        paths = RunPaths(self.url)
        return Result(
            value=status.value,
            metrics=self.last_metrics(),
            run_dir=self.url,
            model_dir=paths.outputs_model if self.plan.local and not self._cloud else paths.model,
            checkpoint_dir=paths.checkpoints,
            tensorboard_dir=paths.tensorboard,
            outputs_dir=paths.outputs,
            logs={} if self._cloud else {t: self.plan.paths.log(status.attempts, t) for t in self.plan.tasks},
        )

    def metrics(self) -> list[dict[str, Any]]:
        """Return every metric record so far: {"attempt", "time", "step", "epoch", "metrics": {name: number}}.

        They are in the order of the attempts. One that continues at a checkpoint reports again what an earlier attempt has
        trained after that checkpoint: `attempt` tells the two apart.
        """
        self._refresh(logs=True)
        found: list[dict[str, Any]] = []
        attempt = 1
        while Path(self.plan.paths.attempt(attempt)).is_dir():
            records = read_metrics(self.plan.paths.metrics(attempt, self.plan.tasks[0]))
            found += [{"attempt": attempt, **record} for record in records]
            attempt += 1
        return found

    def last_metrics(self) -> dict[str, float | None]:
        """Return the last value of every metric."""
        last: dict[str, float | None] = {}
        for record in self.metrics():
            last.update(record["metrics"])
        return last

    def logs(self, task: str | None = None, attempt: int | None = None, follow: bool = False) -> Iterator[LogLine]:
        """Yield the lines that the tasks wrote.

        Args:
            task: one task's name; None for all.
            attempt: one attempt, from 1; None for all.
            follow: go on until the run has ended.

        Raises:
            InputError: the run has no such task or attempt.
        """
        self._refresh(logs=True)
        if attempt is not None and not follow and not Path(self.plan.paths.attempt(attempt)).is_dir():
            raise InputError(f"The run {self.id} has no attempt {attempt}: it has {self.status().attempts}.")
        if self._far is not None:
            return self._far.logs(task=task, attempt=attempt, follow=follow)
        return self._backend.logs(self.plan, task=task, attempt=attempt, follow=follow)

    def download(self, dest: str | Path) -> list[str]:
        """Copy what the program has left, below `work/` and `model/` of a folder, and return the paths of the new files.

        Usage: `run.wait(); run.download("results")`. A file that is there already with the same content stays as it is.

        Args:
            dest: a folder; it is made if there is something to put into it.

        Raises:
            InputError: the run is still going, files would be overwritten, or `dest` can take none. Nothing was written.
            PodliftError: the disk refused. What was copied until then stays.
        """
        status = self.status()
        if not status.state.terminal:
            raise InputError(
                f"The run {self.id} is {status.state.value}: what it leaves is collected when it ends. "
                f"Next: podlift wait {self.id}."
            )
        target = destination(dest, Path(self.plan.paths.url))
        if self._far is not None:
            self._far.bring_outputs()
        # A run of an earlier podlift has collected nothing, nor has one whose supervisor was killed.
        return trees.copy_outputs(self.plan.paths.outputs, target) if Path(self.plan.paths.outputs).is_dir() else []

    def collected(self) -> dict[str, Any] | None:
        """Return what was collected when the run ended; None where nobody did, as after a killed supervisor.

        It is {"files": number, "bytes": number, "skipped": [[path, reason], ...], "skipped_count": number}: the first hundred
        of what the program has left and `download` will not bring.
        """
        self._refresh()
        last = max(read_events(self.plan.paths, ("collected",)), key=lambda event: event.attempt, default=None)
        try:
            return (
                None if last is None else {**last.data, "skipped": [[str(p), str(r)] for p, r in last.data["skipped"]]}
            )
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptRunError(f"A record of {self.url!r} makes no sense: {error!r}. Nothing was changed.") from None

    def checkpoints(self) -> list[CheckpointInfo]:
        """Return what was saved of the training, the oldest first: `[entry.step for entry in run.checkpoints()]`.

        Raises:
            PodliftError: the place where they lie cannot be read.
        """
        return run_checkpoints.entries(RunPaths(self.url))

    def cancel(self, grace_s: float | None = None) -> None:
        """Ask for the end of the run, and return at once; a run that has ended stays as it is.

        Args:
            grace_s: between SIGTERM and SIGKILL; by default the job's own.
        """
        if not self.status().state.terminal:
            grace_s = self.plan.job["limits"]["grace_s"] if grace_s is None else grace_s
            if self._far is not None:
                self._far.cancel(grace_s)
            else:
                self._backend.cancel(self.plan, grace_s=grace_s)

    def resume(self, code: Literal["same", "current"] = "same") -> str:
        """Start a run again that has ended otherwise than by success, and return at once: what is new in its code, in words.

        Usage: `run.resume(); run.result()`, or after the bug is fixed `run.resume(code="current")`

        It is the same run, with a further attempt: training goes on from the last checkpoint. What is new in the code stands
        in the run's history too: `why()`.

        Args:
            code: "same", or "current" for what lies in the run's project now.

        Raises:
            InputError: it is still going, it has succeeded, its bundle or a variable that it copies is gone, the current code
                cannot be packaged, or somebody else has resumed it at the same moment.
        """
        from .planning.resume import resume

        with self._sound():
            events, status = self._look(logs=True)
        self.plan, difference = resume(self.plan, events, status, code, self._clock)
        self._far = self._backend.remote(self.plan, self._clock)
        return str(difference)

    def _refresh(self, *, logs: bool = False) -> None:
        if self._far is not None:
            self._far.refresh(logs=logs)

    def _newest(self, *, fresh: bool) -> tuple[int, float] | None:
        """Return the step and the time of the last checkpoint; a bucket is not asked every time."""
        now, known = self._clock.monotonic(), self._saved
        if not self.plan.local or fresh or known is None or now - known[0] >= _ASK_S:
            known = self._saved = now, run_checkpoints.newest(RunPaths(self.url))
        return known[1]

    def _look(self, *, logs: bool = False) -> tuple[list[Event], Status]:
        self._refresh(logs=logs)
        supervised = self._supervised()
        events = read_events(self.plan.paths)
        return events, self._told(fold(events, supervisor_alive=supervised))

    def _told(self, status: Status) -> Status:
        return self._far.told(status) if self._far is not None else status

    def _supervised(self) -> bool:
        self._refresh()
        return has_ended(self.plan.paths) or (self._far or self._backend).observe(self.plan).supervised

    @contextmanager
    def _sound(self) -> Iterator[None]:
        """Say of records that make no sense that they are damaged."""
        try:
            yield
        except (CorruptRunError, StoreError):
            raise
        except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, OSError) as error:
            raise CorruptRunError(
                f"The records of {self.url!r} make no sense: {error!r}. Nothing was changed."
            ) from None

    def _ref(self) -> str:
        """Return the shortest name under which a shell that was started here finds the run."""
        with suppress(InputError):
            if configured_root(None, os.environ) == self.plan.root:
                return self.id
        return self.url


def _error(run: Run, status: Status) -> RunError:
    kinds: dict[State, type[RunError]] = {
        State.CANCELLED: RunCancelledError,
        State.CHECKPOINTED: RunCheckpointedError,
        State.FAILED: RunFailedError if status.user_fault else RunError,
    }
    return kinds.get(status.state, RunError)(run.why(), status)
