"""Drives a sweep: starts the runs of its trials, reads their metric, stops and continues them, and ends the sweep.

Several drivers of one sweep are harmless, and any of them may be killed at any moment: a trial is claimed by one object of the
journal, and its run has an id that follows from its number. Here a driver is a detached process; elsewhere it is the client
that waits, or the server of `podlift schedule serve`.
"""

from __future__ import annotations

import math
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from .. import backends, logs
from ..clock import Clock, SystemClock
from ..errors import CorruptRunError, InputError, PodliftError, RunNotFoundError, may_pass, nearest
from ..job.layout import RootPaths
from ..job.plan import Plan
from ..process import spawn
from ..process.heartbeats import HEARTBEAT_LATE_S, Heart, is_gone
from ..records import spending
from ..records.metric_file import MetricRecord
from ..run import Run
from ..schedules.runs import KeptRuns, with_arguments
from ..status import Reason, State, Status
from ..text import counted
from . import creation, halving
from .records import CANCELLED, DONE, FAILED, Book, End, heartbeat_key, with_parameters
from .study import COMPLETE, PAUSED, PRUNED, Study, Trial, best_of
from .study import FAILED as FAILED_TRIAL

_log = logs.logger("sweeps")
POLL_S, POLL_FAR_S = 0.5, 5.0
# After an end that the program did not cause.
_MOST_RESUMES = 20
# This number of failures without a value ends the sweep, whatever their causes.
_HOPELESS = 5
# Another start would end in the same way.
_FATAL = (Reason.USER_ERROR, Reason.IMPORT_ERROR, Reason.WRONG_ENTRY)
_MENDED = (State.LOST, State.CHECKPOINTED)
_MENDED_REASONS = (Reason.PREEMPTED, Reason.INFRASTRUCTURE, Reason.KILLED, Reason.STOCKOUT)


class TrialRuns(KeptRuns):
    """The runs of trials, with their metrics."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self._read = dict[str, Run]()

    def metrics(self, url: str) -> list[MetricRecord]:
        """Return the metric records of a run."""
        if url not in self._read:
            self._read[url] = self._run(url)
        return self._read[url].metric_records()


class Driver:
    """One driver of a sweep: `step` starts, stops and ends the trials that are due now."""

    def __init__(self, root: str, name: str, clock: Clock, runs: TrialRuns | None = None, log: str = "") -> None:
        self._book, self._clock, self._runs = Book(root), clock, runs or TrialRuns(clock)
        self._record = self._book.read(name)
        self._plan = self._book.plan(self._record)
        creation.check_variables(self._book, self._record, self._plan)
        self._study = Study(self._book.store, self._record)
        self._me = spawn.identity(os.getpid()) or ""
        self._heart = Heart(self._book.store, heartbeat_key(self._record), self._me, clock, log)
        self._warned = ""
        self._cancelled = set[str]()

    @property
    def poll_s(self) -> float:
        return POLL_S if self._plan.capabilities.supervised_here else POLL_FAR_S

    def run(self) -> End:
        """Drive the sweep to its end."""
        try:
            with backends.load(self._plan.backend).services.warm(self._plan):
                while (end := self.step()) is None:
                    self._clock.sleep(self.poll_s)
            return end
        finally:
            self.close()

    def close(self) -> None:
        """Stop driving: the runs continue, and another driver may."""
        self._runs.close()
        self._heart.beat(ended=True)

    def step(self) -> End | None:
        """Start, stop and end the trials that are due now. Return the end of the sweep; None until then, also in an outage."""
        try:
            self._heart.beat()
            self._record = self._book.read(self._record.spec.name)
            end = self._book.end(self._record)
            # Another driver may have ended it while this one was starting a trial.
            return self._step() if end is None else self._close(self._study.trials(), end)
        except CorruptRunError:
            raise
        except InputError as error:
            return self._close(self._study.trials(), End(state=FAILED, why=str(error)))
        except PodliftError as error:
            if not may_pass(error):
                raise
            if str(error) != self._warned:
                self._warned = str(error)
                _log.warning("The sweep %s waits: %s", self._record.spec.name, error)
            return None

    def _step(self) -> End | None:
        if self._book.is_cancelled(self._record):
            return self._close(self._study.trials(), End(state=CANCELLED, why="cancelled"))
        for trial in self._study.trials():
            if trial.is_open and not _rests(trial):
                with self._ending_removed(trial):
                    self._follow(trial)
        trials = self._study.trials()
        if why := self._hopeless(trials):
            return self._close(trials, End(state=FAILED, why=why))
        return self._filled()

    def _url(self, trial: Trial) -> str:
        return RootPaths(self._book.root).run(trial.run).url

    # --- Trials that go on

    @contextmanager
    def _ending_removed(self, trial: Trial) -> Iterator[None]:
        """End a trial as failed if its run was removed by hand."""
        try:
            yield
        except RunNotFoundError:
            self._end(trial, FAILED_TRIAL, "its run was removed")

    def _follow(self, trial: Trial) -> None:
        if not trial.notes.get("submitted"):
            if self._is_mine(trial):
                self._submit(trial)
            return
        url = self._url(trial)
        status = self._runs.status(url)
        curve = self._curve(self._runs.metrics(url))
        self._study.report(trial, curve)
        trial = replace(trial, curve=curve, value=best_of(self._record.spec.mode, curve.values()))
        if status.state.terminal:
            self._ended(trial, status)
        elif trial.state == PAUSED:
            # Its driver may have been killed before the request.
            self._cancel(url)
        elif curve:
            self._judge(trial)

    def _curve(self, records: Sequence[MetricRecord]) -> dict[int, float]:
        """Return the metric by epoch, of the last attempt that has reported it."""
        points, worst = dict[int, float](), -math.inf if self._record.spec.mode == "max" else math.inf
        numbers = dict[object, int]()
        for place, record in enumerate(records):
            if self._record.spec.metric not in record["metrics"]:
                continue
            value = record["metrics"][self._record.spec.metric]
            step = record.get("step")
            number = numbers.setdefault(place if step is None else step, len(numbers) + 1)
            # A record has None for NaN and infinity. Every other trial is better.
            finite = value is not None and math.isfinite(value)
            points[int(record.get("epoch") or number)] = float(value) if finite else worst
        return dict(sorted(points.items()))

    def _ended(self, trial: Trial, status: Status) -> None:
        """Note the end of a run: the trial has ended, rests until it is continued, or is continued now."""
        phase, spec = _phase(trial), self._record.spec
        if status.state is State.SUCCEEDED:
            if trial.value is not None:
                self._end(trial, COMPLETE, "", status)
                return
            if trial.curve:
                self._end(trial, FAILED_TRIAL, f"all values of {spec.metric!r} are NaN or infinite", status)
                return
            reported = sorted({name for record in self._runs.metrics(self._url(trial)) for name in record["metrics"]})
            hint = nearest(spec.metric, reported) if reported else "It reports no metric."
            why = f"the program has never reported the metric {spec.metric!r}. {hint}"
            self._end(trial, FAILED_TRIAL, why, status, fatal=True)
        elif phase["stopped"] and spec.pruner != "asha":
            self._end(trial, PRUNED, phase["stopped"], status)
        elif phase["stopped"]:
            self._study.note(trial, phase={**phase, "rested": True}, spent_usd=status.spent_usd)
        elif status.state is State.CANCELLED and status.since > max(phase["go"], self._record.resumed):
            self._end(trial, FAILED_TRIAL, "its run was cancelled", status)
        elif self._is_mended(status) and phase["resumes"] < _MOST_RESUMES:
            ours = status.state is State.CANCELLED
            self._study.note(trial, spent_usd=status.spent_usd)
            self._go_on(trial, {**phase, "resumes": phase["resumes"] + (not ours)})
        else:
            failure = status.failure.message if status.failure else status.reason.value
            self._end(trial, FAILED_TRIAL, failure, status, fatal=status.reason in _FATAL)

    def _is_mended(self, status: Status) -> bool:
        """Return whether a resume may help."""
        ended = status.state in (State.CANCELLED, *_MENDED)
        return ended or (status.state is State.FAILED and status.reason in _MENDED_REASONS)

    def _go_on(self, trial: Trial, phase: Mapping[str, Any]) -> None:
        """Resume the run of a trial, from its checkpoint; its end until now no longer counts."""
        self._study.note(trial, phase={**phase, "stopped": "", "rested": False, "go": self._clock.now()})
        self._cancelled.discard(self._url(trial))
        try:
            self._runs.resume(self._url(trial))
        except InputError:
            # Another driver may have resumed it.
            if self._runs.status(self._url(trial)).state.terminal:
                raise

    def _end(self, trial: Trial, state: str, why: str, status: Status | None = None, *, fatal: bool = False) -> None:
        usd = status.spent_usd if status else trial.notes.get("spent_usd")
        about = {"time": self._clock.now(), "fatal": fatal, "spent_usd": usd}
        self._study.note(trial, end=about)
        self._study.tell(trial, state, why)
        value = "" if trial.value is None else f" {self._record.spec.metric} {trial.value:.6g}"
        _log.info("The trial %d: %s%s %s", trial.number, state, value, why)

    def _judge(self, trial: Trial) -> None:
        """Stop a trial that its pruner does not continue: its run saves a checkpoint."""
        spec = self._record.spec
        if spec.pruner == "median":
            if self._study.is_below_median(trial):
                self._stop(trial, f"below the median after {counted(trial.last, 'epoch')}")
        elif spec.pruner == "asha":
            passed = int(trial.notes.get("passed", 0))
            rung = halving.rung(trial.last, passed)
            if rung is not None and self._passes(trial, rung):
                self._study.note(trial, passed=rung + 1)
            elif rung is not None:
                self._study.note(trial, rung=rung)
                self._stop(trial, f"not among the best third after {counted(halving.REDUCTION**rung, 'epoch')}")

    def _passes(self, trial: Trial, rung: int) -> bool:
        others = [each.curve for each in self._study.trials() if each.number != trial.number]
        return halving.passes(trial.curve, rung, [*others, trial.curve], self._record.spec.mode)

    def _stop(self, trial: Trial, why: str) -> None:
        self._study.note(trial, phase={**_phase(trial), "stopped": why})
        self._cancel(self._url(trial))

    def _cancel(self, url: str) -> None:
        """Request the end of a run, once for each start of it."""
        if url not in self._cancelled:
            self._runs.cancel(url)
            self._cancelled.add(url)

    # --- Trials that begin or continue

    def _filled(self) -> End | None:
        """Start trials while there is room, and return the end of the sweep; None if it continues."""
        spec = self._record.spec
        while True:
            trials, position = self._study.trials(), self._study.journal.position
            active = [trial for trial in trials if trial.is_open and not _rests(trial)]
            if len(active) >= spec.parallel:
                return None
            resting = [trial for trial in trials if _rests(trial)]
            limited = self._over_limit(trials)
            if spec.pruner == "asha" and not limited and (best := self._promoted(resting)):
                self._promote(best, int(best.notes["rung"]) + 1)
                continue
            if len(trials) < spec.trials and not limited:
                if self._study.claim(trials, position, {"driver": self._me, "claimed": self._clock.now()}):
                    self._submit(self._study.trials()[len(trials)])
                continue
            if active:
                return None
            if resting and not limited and not any(trial.state == COMPLETE for trial in trials):
                # The best one so far trains to its end.
                self._promote(self._best(resting), halving.LAST)
                continue
            for trial in resting:
                self._end(trial, PRUNED, trial.why)
            self._book.put_end(self._record, End(state=DONE, why=limited))
            return self._book.end(self._record)

    def _promoted(self, resting: Sequence[Trial]) -> Trial | None:
        """Return the best of the trials that have come into the best third of their rung, in the highest rung."""
        passing = [trial for trial in resting if self._passes(trial, int(trial.notes["rung"]))]
        return self._best(passing) if passing else None

    def _best(self, resting: Sequence[Trial]) -> Trial:
        sign = 1 if self._record.spec.mode == "max" else -1
        return max(resting, key=lambda trial: (int(trial.notes.get("rung", 0)), sign * (trial.value or 0.0)))

    def _promote(self, trial: Trial, passed: int) -> None:
        self._study.note(trial, passed=passed)
        with self._ending_removed(trial):
            self._go_on(trial, _phase(trial))

    def _is_mine(self, trial: Trial) -> bool:
        """Return whether this driver submits the run: it claimed the trial, or the driver that did is gone."""
        driver = str(trial.notes.get("driver", ""))
        return (
            driver == self._me
            or is_gone(driver)
            or self._clock.now() - float(trial.notes["claimed"]) > HEARTBEAT_LATE_S
        )

    def _submit(self, trial: Trial) -> None:
        """Start the run of a trial; a run that was started stays as it is."""
        self._runs.submit(self._plan_of(trial))
        self._study.note(trial, submitted=True)

    def _plan_of(self, trial: Trial) -> Plan:
        return with_arguments(self._plan, with_parameters(self._record.args, trial.params), trial.run)

    def _over_limit(self, trials: Sequence[Trial]) -> str:
        """Return why one more trial could exceed the limit on the cost of the sweep, "" if it could not."""
        limit_usd = self._record.spec.max_cost_usd
        if limit_usd is None:
            return ""
        most = spending.most_usd(self._plan) or 0.0
        active = [trial for trial in trials if trial.is_open and not _rests(trial)]
        # A trial that continues may cost the same again.
        spent_usd = most * len(active) + sum(trial.spent_usd or 0.0 for trial in trials)
        return spending.over_limit(self._plan, limit_usd, spent_usd, what="trial")

    # --- The end of the sweep

    def _hopeless(self, trials: Sequence[Trial]) -> str:
        """Return why no trial of the sweep would have a value, "" if one may."""
        ended = [trial for trial in trials if not trial.is_open and trial.notes["end"]["time"] > self._record.resumed]
        if not ended or any(trial.curve for trial in trials):
            return ""
        fatal = [trial for trial in ended if trial.notes["end"]["fatal"]] or ended[: len(ended) // _HOPELESS]
        if not fatal:
            return ""
        return f"The trial {fatal[0].number} has no value: {fatal[0].why} Next: podlift why {fatal[0].run}"

    def _close(self, trials: Sequence[Trial], end: End) -> End | None:
        """Cancel the runs, and end the sweep once they have ended."""
        active = list[Trial]()
        for trial in trials:
            if not trial.is_open or _rests(trial):
                continue
            # A trial without the note "submitted" counts too: its driver may have been killed before it wrote the note.
            url = self._url(trial)
            try:
                terminal = self._runs.status(url).state.terminal
            except RunNotFoundError:
                continue
            except CorruptRunError:
                if trial.notes.get("submitted"):
                    raise
                continue  # its submit was interrupted
            if not terminal:
                active.append(trial)
                self._cancel(url)
        if active:
            return None
        self._book.put_end(self._record, end)
        return self._book.end(self._record)


def _phase(trial: Trial) -> dict[str, Any]:
    """Return why a trial was stopped, whether its run has ended since, when it went on, and its resumes after failures."""
    return {"stopped": "", "rested": False, "go": 0.0, "resumes": 0, **trial.notes.get("phase", {})}


def _rests(trial: Trial) -> bool:
    return trial.state == PAUSED and bool(_phase(trial)["rested"])


def main(root: str, name: str, log: str) -> None:
    """Drive a sweep as a process."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # As after Ctrl-C, the heartbeat says that it has ended.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    logs.start(logs.PLAIN)
    Driver(root, name, SystemClock(), log=log).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
