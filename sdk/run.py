"""A Run: the handle of an existing run. Its methods read the run's directory when they are called."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from . import backends
from .backends.base import LogLine
from .checkpoint import catalog
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
    nearest,
)
from .job.layout import RunPaths
from .job.plan import Plan
from .planning.references import shortest
from .records.events import REMARK, Event, fold
from .records.explain import RunContext, explain, moments
from .records.goodput import add_up
from .records.metric_file import MetricRecord, flat
from .records.recorder import accounts_of, metrics_of, read_events, read_legible, read_status_records
from .records.timeline import Moment
from .status import Goodput, Progress, Reason, State, Status
from .storage import trees
from .storage.paths import destination
from .storage.retry import Outage
from .text import emulator_at, html_table, shown
from .ui.rows import CheckpointRows, LogRows
from .ui.rows import RunInfo as RunInfo

_T = TypeVar("_T")
_POLL_S = 0.1
# The minimum time between two requests to a bucket for the last checkpoint.
_NEWEST_S = 5.0


@dataclass(frozen=True, kw_only=True)
class Result:
    """The result of a run that succeeded: `sdk.submit("train.py").result().metrics["loss"]`.

    Args:
        value: the return value of the entry function in the first task; None for a script.
        metrics: the last value of every metric, by name.
        run_dir: the run's directory.
        model_dir: the directory for the model (`AIP_MODEL_DIR`).
        checkpoint_dir: the directory for the program's own checkpoints (`AIP_CHECKPOINT_DIR`).
        tensorboard_dir: the directory for TensorBoard logs (`AIP_TENSORBOARD_LOG_DIR`).
        outputs_dir: the files of the first task, in `work/` and `model/`; it does not exist if there are none.
        logs: the log file of every task of the last attempt; empty if a cloud keeps the logs, which `Run.logs` also reads.
    """

    value: Any
    metrics: dict[str, float | None]
    run_dir: str
    model_dir: str
    checkpoint_dir: str
    tensorboard_dir: str
    outputs_dir: str
    logs: dict[str, str]

    def _repr_html_(self) -> str:
        metrics = [(name, "nan" if value is None else f"{value:.5g}") for name, value in self.metrics.items()]
        places = [(name, str(place)) for name, place in vars(self).items() if name.endswith("_dir")]
        return html_table([("value", shown(self.value)), *metrics, *places, *self.logs.items()])


class Run:
    """The handle of a run, on any backend and from any process.

    Usage: `run = sdk.attach("digits-k3f9aa"); print(run.id, run.url, run.wait().state)`

    Attributes:
        plan: the plan that it executes.
        id: its id.
        url: its directory.
    """

    def __init__(self, plan: Plan, clock: Clock | None = None) -> None:
        self.plan = plan
        self._clock = clock or SystemClock()
        self._handle = backends.opened(plan, self._clock)
        self._saved: tuple[float, tuple[int, float] | None] | None = None
        # One for the status, one for all other records.
        self._outage, self._other_outage = self._new_outage(), self._new_outage()

    @property
    def id(self) -> str:
        return self.plan.run_id

    @property
    def url(self) -> str:
        return self.plan.url

    def __repr__(self) -> str:
        emulated = f", {emulator_at(self.plan.emulator)}" if self.plan.emulator else ""
        return f"Run({self.url!r}{emulated})"

    def _repr_html_(self) -> str:
        from .ui import notebook

        return notebook.cell(self, shortest(self.plan, os.environ), self._clock)

    def watch(self) -> None:
        """Show the run until it ends: in a notebook as a cell with curves, elsewhere as `podlift wait` does.

        Usage: `sdk.submit("train.py").watch()`. An interrupt ends the watching; the run continues.
        """
        from .ui import notebook

        notebook.watch(self, shortest(self.plan, os.environ), self._clock)

    def export(self, to: Literal["mlflow", "wandb", "trackio"], into: str | None = None) -> str:
        """Write parameters, metrics and state of the run to an experiment tracker, and return where: `run.export("mlflow")`.

        Args:
            to: the tracker, whose library is an extra: `pip install 'podlift[mlflow]'`. A second export adds only new points.
            into: the experiment or project there; by default the one that its environment names, else the name of the run.

        Raises:
            InputError: there is no such tracker, its library is missing, or it is set up to write nowhere.
            PodliftError: the tracker failed. Exporting again continues.
        """
        from . import exports

        return exports.write(to, exports.read(self), into)

    def status(self) -> Status:
        """Return the current status: `print(run.status().state)`.

        Raises:
            CorruptRunError: its records are damaged.
        """
        with self._sound():
            return self._with_saved(self._read(read_status_records)[1])

    def progress(self) -> Progress | None:
        """Return the progress of the training, also within an epoch: `print(run.progress())`; None while it is unknown.

        On the run's own machine it is current; a run in a bucket updates it every ten seconds.
        """
        return self._handle.progress()

    def goodput(self, task: str | None = None) -> Goodput | None:
        """Return how the time of the run was spent so far: `print(run.goodput().goodput)`; None if it is not recorded.

        Args:
            task: name of the task; the first one by default.

        Raises:
            InputError: the run has no such task.
        """
        name = self.plan.tasks[0] if task is None else task
        if name not in self.plan.tasks:
            raise InputError(f"The run {self.id} has no task {name!r}. {nearest(name, self.plan.tasks)}")
        with self._sound():
            self._handle.refresh()
            supervised, live = self._handle.supervised(), self._handle.account() if name == self.plan.tasks[0] else None
            events = read_events(self.plan.paths)
            spent = accounts_of(self.plan.paths, events, name)
            spent = {live.attempt: live.account, **spent} if live else spent
            cloud = not self.plan.capabilities.supervised_here
            now = self._clock.now()
            return add_up(events, spent, task=name, now=now, supervised=supervised, waits_for_machines=cloud)

    def why(self) -> str:
        """Return an explanation in words: the state and its cause, a timeline, and the next command.

        Usage: `print(run.why())`, at any time and from any process.

        Raises:
            CorruptRunError: its records are damaged.
        """
        with self._sound():
            return explain(*self._history())

    def timeline(self) -> list[Moment]:
        """Return the events of the run, as `why` lists them: attempts, restarts, preemptions, the last checkpoint.

        Usage: `for moment in run.timeline(): print(moment.time, moment.source, moment.text)`

        Raises:
            CorruptRunError: its records are damaged.
        """
        with self._sound():
            return moments(*self._history())

    def wait(self, timeout_s: float | None = None) -> Status:
        """Wait for the end of the run, however it ends, and return the last status: `run.wait(timeout_s=3600).state`.

        On Vertex AI, a process that waits submits the next job when machines were taken away or are missing, within the
        budgets of `Retry` and the limits of the run. A service that cannot be reached, or fails, does not end the wait:
        after half a minute the logger `podlift.backends` names the problem.

        Args:
            timeout_s: the maximum time in seconds; None waits forever.

        Raises:
            WaitTimeoutError: the run is still going. It is not affected.
        """
        until = None if timeout_s is None else self._clock.monotonic() + timeout_s
        with closing(self.following()) as statuses:
            for status in statuses:
                if status.state.terminal:
                    self._handle.settle(until)
                    break
                if until is not None and self._clock.monotonic() >= until:
                    problem = f" It cannot be read now: {self._outage.error}" if self._outage.error else ""
                    raise WaitTimeoutError(
                        f"The run {self.id} is still {status.state.value} after {timeout_s} s. It continues.{problem}"
                    )
                self._clock.sleep(_POLL_S)
        return status

    def following(self) -> Generator[Status]:
        """Yield the current status repeatedly, and the final one last: `for status in run.following(): print(status.state)`.

        Meanwhile this process keeps the run going: on Vertex AI, it submits the next job. While a service cannot be reached,
        it yields the last known status.
        """
        status = Status(state=State.PENDING, reason=Reason.SUBMITTED)
        with self._handle.attending() as attend:
            while not status.state.terminal:
                with self._outage.asking():
                    attend()
                    status = self.status()
                yield status
                self._clock.sleep(self._outage.pause_s)

    def patient(self) -> AbstractContextManager[None]:
        """Report a service that cannot be reached instead of raising the error: `with run.patient(): print(run.metrics())`.

        The block ends at the error, and the caller repeats it later.
        """
        return self._other_outage.asking()

    def result(self, timeout_s: float | None = None) -> Result:
        """Wait for the end of the run and return its result: `run.result(timeout_s=3600).metrics`.

        Args:
            timeout_s: as for `wait`.

        Raises:
            RunFailedError: the program failed; the message holds its traceback.
            RunCancelledError: the run was cancelled.
            RunCheckpointedError: the program saved its state and requests a restart.
            RunError: the infrastructure failed.
            WaitTimeoutError: as for `wait`.
        """
        until = None if timeout_s is None else self._clock.monotonic() + timeout_s
        status = self.wait(timeout_s)
        if status.state is not State.SUCCEEDED:
            raise _error(status)(self._patiently(self.why, until), status)
        paths, capabilities = RunPaths(self.url), self.plan.capabilities
        logs = {} if capabilities.keeps_logs else {t: self.plan.paths.log(status.attempts, t) for t in self.plan.tasks}
        return Result(
            value=status.value,
            metrics=self._patiently(self.last_metrics, until),
            run_dir=self.url,
            model_dir=paths.outputs_model if self.plan.local and not capabilities.outputs_in_store else paths.model,
            checkpoint_dir=paths.checkpoints,
            tensorboard_dir=paths.tensorboard,
            outputs_dir=paths.outputs,
            logs=logs,
        )

    def metrics(self) -> list[dict[str, Any]]:
        """Return every reported metric so far as rows: `run.metrics()[-1]["loss"]`, or `pandas.DataFrame(run.metrics())`.

        A row has `attempt` and `epoch`, both from 1, `step`, `time` as unix time in seconds, and the metrics by their names. A
        metric that has the name of one of these four gets an underscore: `time_`. None stands for an unknown step or epoch, and
        for a number that is not finite. An attempt that continues from a checkpoint reports the steps after it again, under
        its own `attempt`.
        """
        return [flat(record) for record in self.metric_records()]

    def metric_records(self) -> list[MetricRecord]:
        """Return the rows of `metrics` with their numbers apart: `run.metric_records()[-1]["metrics"]["loss"]`."""
        self._handle.refresh(logs=True)
        records, attempt = list[MetricRecord](), 1
        while Path(self.plan.paths.attempt(attempt)).is_dir():
            # Copies, which the caller may change.
            for record in metrics_of(self.plan.paths, attempt, self.plan.tasks):
                records.append({"attempt": attempt, **record, "metrics": dict(record["metrics"])})
            attempt += 1
        return records

    def last_metrics(self) -> dict[str, float | None]:
        """Return the last value of every metric, by name: `run.last_metrics()["val_loss"]`."""
        last: dict[str, float | None] = {}
        for record in self.metric_records():
            last.update(record["metrics"])
        return last

    def plot(self, *metrics: str) -> dict[str, Any]:
        """Draw the curves of the metrics with matplotlib, and return the axes of each: `run.plot("loss", "val_loss")`.

        Usage: `run.plot()["loss"].set_yscale("log")`. A metric and its `val_` are in the same axes. A cell of a notebook that
        ends in the run shows its curves without matplotlib.

        Args:
            *metrics: names of metrics; all by default.

        Raises:
            InputError: matplotlib is missing, or the run has reported no metric, or not this one.
        """
        from .ui import plot

        return plot.draw(self.id, self.metric_records(), metrics)

    def logs(self, task: str | None = None, attempt: int | None = None, follow: bool = False) -> Iterator[LogLine]:
        """Yield the log lines of the tasks: `for line in run.logs("chief-0", follow=True): print(line.text)`.

        Args:
            task: the name of one task; None for all.
            attempt: one attempt, from 1; None for all.
            follow: wait for more lines until the run has ended.

        Raises:
            InputError: the run has no such task or attempt.
        """
        self._handle.refresh(logs=True)
        if attempt is not None and not follow and not Path(self.plan.paths.attempt(attempt)).is_dir():
            raise InputError(f"The run {self.id} has no attempt {attempt}: it has {self.status().attempts}.")
        return LogRows(self._handle.logs(task=task, attempt=attempt, follow=follow), self, task or "", attempt)

    def download(self, dest: str | Path) -> list[str]:
        """Copy the program's outputs to `work/` and `model/` in a folder, and return the paths of the new files.

        Usage: `run.wait(); run.download("results")`. Existing files with the same content are left as they are.

        Args:
            dest: a folder; created if there are outputs.

        Raises:
            InputError: the run is still going, files would be overwritten, or `dest` is not usable. Nothing was written.
            PodliftError: the disk failed. Files copied before that remain.
        """
        status = self.status()
        if not status.state.terminal:
            raise InputError(
                f"The run {self.id} is {status.state.value}: its outputs are collected when it ends. "
                f"Next: podlift wait {self.id}."
            )
        target = destination(dest, Path(self.plan.paths.url))
        self._handle.fetch_outputs()
        # A killed supervisor has collected none.
        return trees.copy_outputs(self.plan.paths.outputs, target) if Path(self.plan.paths.outputs).is_dir() else []

    def collected(self) -> dict[str, Any] | None:
        """Return the record of the collected outputs: `run.collected()["files"]`.

        It is {"files": number, "bytes": number, "skipped": [[path, reason], ...], "skipped_count": number}, with the first
        hundred of the files that `download` will not copy. None without a record, as after a killed supervisor.
        """
        self._handle.refresh()
        last = max(read_events(self.plan.paths, ("collected",)), key=lambda event: event.attempt, default=None)
        if last is None:
            return None
        try:
            return {**last.data, "skipped": [[str(path), str(reason)] for path, reason in last.data["skipped"]]}
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptRunError(f"A record of {self.url!r} is damaged: {error!r}. Nothing was changed.") from None

    def checkpoints(self, best: str | None = None) -> list[CheckpointInfo]:
        """Return the checkpoints of the run, the oldest first: `[entry.step for entry in run.checkpoints()]`.

        Usage: `best = run.checkpoints(best="val_accuracy")[0]; print(best.step, best.metrics)`

        Args:
            best: only checkpoints with this metric, the best one first: "val_loss", "max:val_f1"; as for `checkpoint_best`.

        Raises:
            InputError: there are checkpoints, and none has the metric.
            PodliftError: the checkpoint store cannot be read.
        """
        checkpoints = catalog.entries(RunPaths(self.url))
        return CheckpointRows(checkpoints if best is None else catalog.best_first(checkpoints, best))

    def load_weights(self, model: Any, checkpoint: CheckpointInfo | int | Literal["last"] = "last") -> CheckpointInfo:
        """Load the weights of a checkpoint into a Keras model, all of them or none, and return the checkpoint.

        Usage: `model = build(); run.load_weights(model, run.checkpoints(best="val_loss")[0])`

        Args:
            model: the model as the program builds it, with its weights made; a list if it trains several together.
            checkpoint: one of `run.checkpoints()`, the step of one, or "last".

        Raises:
            InputError: there is no such checkpoint, or the model has other weights. Nothing was loaded.
            CorruptCheckpointError: the checkpoint is damaged.
        """
        from .runtime.weights import from_checkpoint

        paths = RunPaths(self.url)
        entry = checkpoint if isinstance(checkpoint, CheckpointInfo) else catalog.find(paths, str(checkpoint))
        from_checkpoint.load(model, catalog.read(paths, entry.key), f"the checkpoint of step {entry.step} of {self.id}")
        return entry

    def cancel(self, grace_s: float | None = None) -> None:
        """Request the cancellation of the run, and return at once: `run.cancel(grace_s=30)`. An ended run is not affected.

        Args:
            grace_s: seconds between SIGTERM and SIGKILL; by default the job's `Limits.grace_s`.
        """
        if not self.status().state.terminal:
            grace_s = self.plan.job.limits.grace_s if grace_s is None else grace_s
            self._handle.cancel(grace_s)

    def resume(
        self,
        code: Literal["same", "current"] = "same",
        *,
        timeout_s: float | None = None,
        max_cost_usd: float | None = None,
    ) -> str:
        """Restart a run that has ended without success, without waiting for it, and return how its code has changed, in words.

        Usage: `run.resume(); run.result()`, or after fixing a bug `run.resume(code="current")`

        The same run gets another attempt, which continues from the last checkpoint. The change of the code is also part of
        the run's history: `why()`.

        Args:
            code: "same", or "current" for the present files of the run's project.
            timeout_s: another time limit, in seconds; None for the run's own. Its time begins again.
            max_cost_usd: another limit on the cost of all jobs of the run, in US dollars; None for the run's own. Earlier jobs
                of the run count.

        Raises:
            InputError: the run is still going or has succeeded, its bundle or a variable that it copies is missing, the
                current code cannot be packaged, the limit on the cost does not allow another job, or the run is being resumed
                elsewhere.
        """
        from .launch import resume

        with self._sound():
            events, status = self._read(logs=True)
        new_limits = {"timeout_s": timeout_s, "max_cost_usd": max_cost_usd}
        new_limits = {name: value for name, value in new_limits.items() if value is not None}
        own = self.plan.job.limits
        limits = replace(own, **new_limits) if new_limits else own  # type: ignore[arg-type]
        self.plan, difference = resume(self.plan, events, status, code, self._clock, limits)
        self._handle = backends.opened(self.plan, self._clock)
        return str(difference)

    def _history(self) -> tuple[list[Event], Status, RunContext]:
        """Return the events, the status and the context of an explanation."""
        events, status = self._read(read_legible, logs=True)
        position = self._handle.progress()
        context = RunContext(
            shortest(self.plan, os.environ),
            self.plan.paths,
            self.plan.tasks,
            self._clock.now(),
            cloud=not self.plan.capabilities.supervised_here,
            generated=bool(self.plan.code.generated),
            service=self._handle.history(),
            step=position.step if position else None,
        )
        return events, self._with_saved(status), context

    def _patiently(self, call: Callable[[], _T], until: float | None) -> _T:
        """Return the call's value as soon as all services answer; WaitTimeoutError after `until`."""
        outage = self._new_outage()
        while (answer := outage.outlive(call)) is None:
            left_s = math.inf if until is None else until - self._clock.monotonic()
            if left_s <= 0:
                raise WaitTimeoutError(
                    f"The run {self.id} cannot be read: {outage.error} The run itself is not affected."
                )
            self._clock.sleep(min(outage.pause_s, left_s))
        return answer

    def _new_outage(self) -> Outage:
        about = f"The run {self.id} cannot be read", "The run is not affected, and this process keeps waiting."
        return Outage(self._clock, *about)

    def _with_saved(self, status: Status) -> Status:
        """Return the status with the last checkpoint; a bucket is not queried for it every time."""
        now, saved = self._clock.monotonic(), self._saved
        if not self.plan.local or status.state.terminal or saved is None or now - saved[0] >= _NEWEST_S:
            saved = self._saved = now, catalog.newest(RunPaths(self.url))
        step, time = saved[1] or (None, None)
        return replace(status, saved_step=step, saved_at=time)

    def _read(
        self, read: Callable[[RunPaths], list[Event]] = read_events, *, logs: bool = False, tidy: bool = True
    ) -> tuple[list[Event], Status]:
        self._handle.refresh(logs=logs)
        # Before the records: a supervisor that ends in between has written its verdict by then.
        supervised = self._handle.supervised()
        if tidy and not supervised:
            self._handle.end_leftovers()
        events = read(self.plan.paths)
        status = self._handle.merge(fold(events, supervisor_alive=supervised))
        return [event for event in events if event.kind != REMARK], status

    @contextmanager
    def _sound(self) -> Iterator[None]:
        """Turn errors that damaged records cause into CorruptRunError."""
        try:
            yield
        except (CorruptRunError, StoreError):
            raise
        except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, OSError) as error:
            raise CorruptRunError(f"The records of {self.url!r} are damaged: {error!r}. Nothing was changed.") from None


def listed_status(run: Run) -> Status:
    """Return the status of a run for a list of runs. Unlike `Run.status`, it leaves processes of a killed supervisor alone."""
    with run._sound():
        return run._with_saved(run._read(read_status_records, tidy=False)[1])


def _error(status: Status) -> type[RunError]:
    kinds: dict[State, type[RunError]] = {
        State.CANCELLED: RunCancelledError,
        State.CHECKPOINTED: RunCheckpointedError,
        State.FAILED: RunFailedError if status.user_fault else RunError,
    }
    return kinds.get(status.state, RunError)
