"""Sweep: creates, follows and reads sweeps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..clock import Clock, SystemClock
from ..errors import InputError, PodliftError, StoreError, WaitTimeoutError
from ..job.job import Job
from ..job.values import UNSET
from ..planning.roots import holding, in_bucket, searched
from ..planning.settings.merge import from_keywords, keywords_of
from ..planning.settings.table import COMMON
from ..records.named import remember
from ..storage.paths import usable
from . import creation
from .reader import Reader, SweepView
from .records import Book
from .space import Parameter

if TYPE_CHECKING:
    from .study import Trial

_POLL_S = 0.5
# A driver that ends this often without any progress does not work on this machine.
_MOST_STARTS = 3


class Sweep:
    """The handle of a sweep: `print(sdk.Sweep("digits-a1b2").best())`.

    Args:
        name: its name.
        root: as for `plan`; by default the roots of all configured backends are searched.

    Raises:
        InputError: there is no such sweep.
    """

    def __init__(self, name: str, *, root: str | Path | None = None, clock: Clock | None = None) -> None:
        creation.check_installed()
        self._book, self._clock = holding(name, root, Book), clock or SystemClock()
        self.root = self._book.root
        self.name = self._book.read(name).spec.name
        self._reader = Reader(self.root, self._clock)

    def __repr__(self) -> str:
        return f"Sweep({self.name!r}, root={self.root!r})"

    def read(self) -> SweepView:
        """Return the state of the sweep with all trials and their curves: `print(sweep.read().state)`.

        Raises:
            CorruptRunError, CorruptObjectError: a part of it is damaged. `podlift sweep status` shows the others.
        """
        reading = self._reader.one(self.name)
        if reading.damage:
            raise reading.damage
        return reading.readable()

    def trials(self) -> list[Trial]:
        """Return the trials by number: `for trial in sweep.trials(): print(trial.params, trial.value)`."""
        return list(self.read().trials)

    def best(self) -> Trial | None:
        """Return the trial with the best value of those that trained to their end: `sweep.best().params`.

        None before the first value. Its run: `sdk.attach(sweep.best().run)`.
        """
        return self.read().best

    def wait(self, timeout_s: float | None = None) -> Trial | None:
        """Wait for the end of the sweep, and return the best trial: `sweep.wait().params`.

        Here a detached process drives the sweep, and a killed one is replaced. On a cloud, this process does, or a server.

        Args:
            timeout_s: the maximum time in seconds; None waits forever.

        Raises:
            InputError: the sweep has failed: no trial would have a value.
            WaitTimeoutError: it goes on. It is not affected.
        """
        until = None if timeout_s is None else self._clock.monotonic() + timeout_s
        for view in self.following():
            if view.end is None and until is not None and self._clock.monotonic() >= until:
                raise WaitTimeoutError(f"The sweep {self.name} is still going after {timeout_s} s. It continues.")
        if view.state == "FAILED" and view.end:
            raise InputError(view.end.why)
        return view.best

    def following(self) -> Iterator[SweepView]:
        """Yield the state repeatedly, and the final one last: `for view in sweep.following(): print(len(view.trials))`.

        Meanwhile this process keeps the sweep going, as in `wait`.
        """
        starts, reached, driver = 0, 0, None
        try:
            while (view := self.read()).end is None:
                yield view
                if (points := sum(1 + len(trial.curve) for trial in view.trials)) > reached:
                    starts, reached = 0, points
                if not view.driven and view.plan.capabilities.supervised_here:
                    starts += creation.start(self._book, view.record, view.plan, self._clock)
                    if starts > _MOST_STARTS:
                        raise PodliftError(f"The driver of the sweep {self.name} ends again and again. See {view.log}.")
                elif driver is not None or not view.driven:
                    from .driver import Driver

                    driver = driver or Driver(self.root, self.name, self._clock)
                    driver.step()
                    self._clock.sleep(driver.poll_s)
                self._clock.sleep(_POLL_S)
        finally:
            if driver is not None:
                driver.close()
        yield view

    def cancel(self) -> None:
        """Request the end of the sweep: its runs save a checkpoint and end, `sweep.cancel()`. An ended one is not affected."""
        view = self.read()
        if view.end is None:
            self._book.request_cancel(view.record)
            if not creation.start(self._book, view.record, view.plan, self._clock) and not view.driven:
                from .driver import Driver

                # On a cloud, no other process may be there to cancel the runs.
                driver = Driver(self.root, self.name, self._clock)
                try:
                    driver.step()
                finally:
                    driver.close()

    def resume(self) -> None:
        """Continue a sweep that has ended, or that no process drives: `sweep.resume(); sweep.wait()`.

        Trials that were cancelled continue from their checkpoints with the same parameters.
        """
        view = self.read()
        creation.resume(self._book, view.record, view.plan, self._clock)

    def write_journal(self, path: str | Path) -> None:
        """Write the journal as a file of Optuna's, which `optuna-dashboard` opens: `sweep.write_journal("sweep.log")`.

        Args:
            path: a new file, or an older journal, which is replaced.

        Raises:
            InputError: the file exists and is no journal, or cannot be written.
        """
        from .mended import ReadJournal

        target = Path(path)
        with usable("The journal", target):
            before = target.read_bytes() if target.is_file() else b""
            if before and not before.startswith(b'{"op_code"'):
                raise InputError(
                    f"The file exists and is no journal of Optuna. Received: {str(path)!r}. Nothing was written."
                )
            lines = ReadJournal(self._book.store, self._book.read(self.name)).lines()
            target.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def sweep(
    what: str | Path | Callable[..., Any] | Job,
    space: Mapping[str, Parameter | str | Sequence[Any]],
    *,
    metric: str,
    trials: int,
    mode: str = "max",
    parallel: int | None = None,
    pruner: str = "none",
    sampler: str = "tpe",
    seed: int = 0,
    **settings: Any,
) -> Sweep:
    """Search the best parameters of a program: `sdk.sweep("train.py", {"lr": "log:1e-5..1e-1"}, metric="accuracy", trials=9)`.

    Each trial is a run, and gets its parameters as arguments: `--lr 0.01` for a script, keywords for a function. On
    this machine, a detached process drives the sweep; on a cloud, `Sweep.wait` does. An existing sweep of that name continues,
    also with more trials, if nothing else differs.

    Args:
        what: as for `plan`.
        space: the range or the choices of each parameter: `LogUniform`, `Uniform`, `IntUniform`, `Choice`, their texts as in
            `podlift sweep create --space`, or a list of choices.
        metric: the metric to optimize, which `fit` or `ctx.report` reports. A trial counts with its best epoch.
        trials: the number of trials.
        mode: "max" or "min".
        parallel: how many run at the same time; by default the CPUs of this machine divided by the tasks of a trial, on a cloud
            up to four.
        pruner: "asha" stops trials after 1, 3, 9 ... epochs and continues the best third of each rung from their checkpoints;
            "median" stops trials below the median of the others; "none" stops none.
        sampler: "tpe", "random", or "grid" for all points in order.
        seed: the same seed gives the same first parameters; with the random sampler or `parallel=1`, all are the same.
        **settings: `name`, `root`, `backend` and every other keyword of `submit`. `max_cost_usd` limits the cost of all trials
            together, in US dollars.

    Raises:
        InputError: with every mistake that was found; nothing was written or started.
    """
    about = {name: value for name, value in locals().items() if name in ("space", *creation.CHOSEN)}
    flat_settings, target = from_keywords(keywords_of({**dict.fromkeys(COMMON, UNSET), "more": settings}))
    prepared = creation.prepare(what, flat_settings, target, about)
    creation.create(prepared)
    return Sweep(prepared.spec.name, root=prepared.plan.root)


def listed(root: str | Path | None = None) -> tuple[list[SweepView], list[str]]:
    """Return the sweeps of a root, by default of all configured backends, by name, and a sentence for each unreadable one."""
    roots, problems = searched(root)
    views = list[SweepView]()
    for place in roots:
        try:
            members = Reader(place, SystemClock()).all()
            if in_bucket(place):
                remember("sweep", (sweep.name for sweep in members), place)
            for sweep in members:
                views += [sweep.view] if sweep.view else []
                what = f"The sweep {sweep.name} is damaged" if sweep.view else f"The sweep {sweep.name} is not listed"
                problems += [f"{what}: {problem}" for problem in sweep.problems]
        except StoreError as error:
            # Sweeps of other roots are still listed.
            if len(roots) == 1:
                raise
            problems.append(f"The sweeps of {place} are not listed: {error}")
    return views, problems
