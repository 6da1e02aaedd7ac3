"""A Run: the handle of what exists. Everything it says is read from the run's directory when it is asked."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from . import backends
from .backends.base import LogLine
from .clock import Clock, SystemClock
from .errors import (
    CorruptRunError,
    InputError,
    RunCancelledError,
    RunCheckpointedError,
    RunError,
    RunFailedError,
    WaitTimeoutError,
)
from .events import Event, fold, generation, source_of
from .explanation import About, explain
from .packaging.paths import usable
from .planner import Plan
from .roots import resolve_root
from .status import State, Status
from .storage import posix, trees
from .storage.records import Recorder, has_ended, read_events, read_metrics

_POLL_S = 0.1


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
        logs: the log file of every task of the last attempt.
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
    """One line of `runs()`: the status is None for a directory that cannot be read, and `problem` says why."""

    id: str
    url: str
    status: Status | None
    problem: str = ""


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

    @property
    def id(self) -> str:
        return self.plan.run_id

    @property
    def url(self) -> str:
        return self.plan.url

    def __repr__(self) -> str:
        return f"Run({self.url!r})"

    def status(self) -> Status:
        """Return how the run is doing now.

        Raises:
            CorruptRunError: its records are damaged.
        """
        with self._sound():
            return self._look()[1]

    def why(self) -> str:
        """Return what a person needs to know: how the run is, since when, why, what it waits for, and what to type next.

        Usage: `print(run.why())`, while it goes on or whenever it has ended, from any process.

        Raises:
            CorruptRunError: its records are damaged.
        """
        with self._sound():
            events, status = self._look()
            about = About(ref=self._ref(), paths=self.plan.paths, tasks=self.plan.tasks, now=self._clock.now())
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
        paths = self.plan.paths
        return Result(
            value=status.value,
            metrics=self.last_metrics(),
            run_dir=self.url,
            model_dir=paths.model,
            checkpoint_dir=paths.checkpoints,
            tensorboard_dir=paths.tensorboard,
            outputs_dir=paths.outputs,
            logs={task: paths.log(status.attempts, task) for task in self.plan.tasks},
        )

    def metrics(self) -> list[dict[str, Any]]:
        """Return every metric record so far, oldest first: {"time", "step", "epoch", "metrics": {name: number}}."""
        found: list[dict[str, Any]] = []
        attempt = 1
        while Path(self.plan.paths.attempt(attempt)).is_dir():
            found += read_metrics(self.plan.paths.metrics(attempt, self.plan.tasks[0]))
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
        if attempt is not None and not follow and not Path(self.plan.paths.attempt(attempt)).is_dir():
            raise InputError(f"The run {self.id} has no attempt {attempt}: it has {self.status().attempts}.")
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
        target = _destination(dest, Path(self.url))
        # A run of an earlier podlift has collected nothing, nor has one whose supervisor was killed.
        return trees.copy_into(self.plan.paths.outputs, target) if Path(self.plan.paths.outputs).is_dir() else []

    def collected(self) -> dict[str, Any] | None:
        """Return what was collected when the run ended; None where nobody did, as after a killed supervisor.

        It is {"files": number, "bytes": number, "skipped": [[path, reason], ...], "skipped_count": number}: the first hundred
        of what the program has left and `download` will not bring.
        """
        last = max(read_events(self.plan.paths, ("collected",)), key=lambda event: event.attempt, default=None)
        try:
            return (
                None if last is None else {**last.data, "skipped": [[str(p), str(r)] for p, r in last.data["skipped"]]}
            )
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptRunError(f"A record of {self.url!r} makes no sense: {error!r}. Nothing was changed.") from None

    def cancel(self, grace_s: float | None = None) -> None:
        """Ask for the end of the run, and return at once; a run that has ended stays as it is.

        Args:
            grace_s: between SIGTERM and SIGKILL; by default the job's own.
        """
        if not self.status().state.terminal:
            self._backend.cancel(self.plan, grace_s=self.plan.job["limits"]["grace_s"] if grace_s is None else grace_s)

    def resume(self) -> None:
        """Start a run again that has ended otherwise than by success, and return at once: the same code, a further attempt.

        Usage: `run.resume(); run.result()`

        Raises:
            InputError: it is still going, it has succeeded, its bundle or a variable that it copies is gone, or somebody
                else has resumed it at the same moment.
        """
        with self._sound():
            events, status = self._look()
        problems = [*_not_resumable(self, status), *missing_variables(self.plan.job["env"], os.environ)]
        if problems:
            raise InputError(problems)
        resumes = generation(events)
        wishes = len(posix.list_names(self.plan.paths.control))
        recorder = Recorder(self.plan.paths, source_of("client", resumes + 1), 0, self._clock)
        try:
            recorder.record("resumed", attempts=status.attempts, wishes=wishes)
        except FileExistsError:
            raise InputError(
                f"The run {self.id} was resumed by somebody else. Next: podlift status {self.id}."
            ) from None
        self._backend.start(self._backend.render(self.plan))

    def _look(self) -> tuple[list[Event], Status]:
        # Looked at before the records: a supervisor that ends in between has written its verdict.
        supervised = has_ended(self.plan.paths) or self._backend.observe(self.plan).supervised
        events = read_events(self.plan.paths)
        return events, fold(events, supervisor_alive=supervised)

    @contextmanager
    def _sound(self) -> Iterator[None]:
        """Say of records that make no sense that they are damaged."""
        try:
            yield
        except CorruptRunError:
            raise
        except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, OSError) as error:
            raise CorruptRunError(
                f"The records of {self.url!r} make no sense: {error!r}. Nothing was changed."
            ) from None

    def _ref(self) -> str:
        """Return the shortest name under which a shell that was started here finds the run."""
        with suppress(InputError):
            if resolve_root(None, os.environ) == self.plan.root:
                return self.id
        return self.url


def missing_variables(env: Mapping[str, Any], environ: Mapping[str, str]) -> list[str]:
    """Return a sentence about the variables that a job copies from its caller, and that are not set here."""
    missing = sorted(name for name, value in env.items() if not isinstance(value, str) and name not in environ)
    return [f"env: {', '.join(missing)} is to be copied from here, but is not set here."] if missing else []


def _not_resumable(run: Run, status: Status) -> list[str]:
    if not status.state.terminal:
        return [f"The run {run.id} is {status.state.value}: there is nothing to resume. Next: podlift wait {run.id}."]
    if status.state is State.SUCCEEDED:
        return [f"The run {run.id} has succeeded: there is nothing to resume. Next: submit it again."]
    if not Path(run.plan.bundle).exists():
        return [f"The code of the run {run.id} is gone: {run.plan.bundle!r} was removed. Next: submit it again."]
    return []


def _destination(dest: str | Path, run_dir: Path) -> str:
    """Return the absolute path of a folder that may take files, whether it exists or not."""
    if not isinstance(dest, (str, PurePath)) or not str(dest) or "://" in str(dest):
        raise InputError(f"The destination is no folder of this machine. Received: {dest!r}.")
    with usable("The destination", dest):
        target = Path(dest).expanduser().resolve()
        # What lies there is taken for runs.
        if target.is_relative_to(run_dir.resolve().parent):
            raise InputError(
                f"The destination lies among the runs. Received: {str(dest)!r}. Next: name a folder elsewhere."
            )
        if target.exists() and not target.is_dir():
            raise InputError(f"The destination is a file. Received: {str(dest)!r}. Next: name a folder.")
    return str(target)


def _error(run: Run, status: Status) -> RunError:
    kinds: dict[State, type[RunError]] = {
        State.CANCELLED: RunCancelledError,
        State.CHECKPOINTED: RunCheckpointedError,
        State.FAILED: RunFailedError if status.user_fault else RunError,
    }
    return kinds.get(status.state, RunError)(run.why(), status)
