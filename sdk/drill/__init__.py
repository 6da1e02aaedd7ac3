"""The drill: train twice undisturbed and once under kills, and compare the weights bit by bit. See docs/how-to/drill.md."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..clock import Clock, SystemClock
from ..job.job import Job
from ..job.layout import RunPaths
from ..job.payload import Kill
from ..job.plan import Plan
from ..job.targets import Target
from ..logs import logger
from ..planning.pack import packaged
from ..planning.settings.merge import Destination, Entry
from ..records.recorder import read_events
from ..run import Run
from ..status import State, Status
from . import comparison, runs
from . import kills as costs
from .comparison import ArrayDifference, TrainingEnd
from .kills import Killed, parse
from .report import DrillReport, UnseededCall, Verdict

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..planning.settings.keywords import JobKeywords

_log = logger("drill")

__all__ = ["KILLS", "ArrayDifference", "DrillReport", "Killed", "UnseededCall", "execute", "prepare", "run_drill"]

KILLS = ("random:3",)
prepare = runs.prepare


def run_drill(
    what: Entry | Job,
    *,
    kills: Sequence[str] = KILLS,
    seed: int = 1,
    backend: str | Target | None = None,
    root: str | Path | None = None,
    name: str | None = None,
    **settings: Unpack[JobKeywords],
) -> DrillReport:
    """Find out whether a training survives being killed: `run_drill("train.py", workers=2, kills=["worker-0@step:50"])`.

    The logger `podlift.drill` gets a message for each event.

    Args:
        what: as for `sdk.plan`.
        kills: "TASK@POINT:NUMBER", where the point is step, epoch, save or validation, or "random:NUMBER" for kills at
            this number of random steps. With a backend that runs containers, "TASK@POINT:NUMBER:agent", ":machine" or
            ":region" kills the task's agent, machine or region.
        seed: of everything random, including random kills.
        backend: "local" by default, or "vertex" or a `Vertex`, for which the emulator has to be configured: a drill never runs
            in a real cloud.
        root: as for `sdk.plan`.
        name: as for `sdk.plan`.
        **settings: settings of a job; `every_steps` is 10 by default.

    Raises:
        InputError: with every mistake, before anything is started.
        RunError: an undisturbed training failed.
    """
    target = Destination(backend=backend, root=root, name=name)
    plan = prepare(what, settings, target, os.environ, kills=kills, seed=seed)
    return execute(plan, kills, SystemClock())


def execute(plan: Plan, kills: Sequence[str], clock: Clock) -> DrillReport:
    """Run the drill that `prepare` planned; see `run_drill`."""
    # Packaged once, so that all its runs have the same code.
    return _DrillRunner(packaged(plan), kills, clock).report()


class _DrillRunner:
    def __init__(self, plan: Plan, kills: Sequence[str], clock: Clock) -> None:
        self._plan = plan
        self._kills = kills
        self._clock = clock
        self._urls: dict[str, str] = {}
        self._seconds: list[float] = []
        self._sources: dict[UnseededCall, None] = {}

    def report(self) -> DrillReport:
        one = self._undisturbed("undisturbed", "1")
        if one is None:
            return self._report("nothing_saved")
        tasks, seed = self._plan.tasks, runs.drill_of(self._plan).seed
        kills = parse(self._kills, tasks, self._plan.capabilities.drills, steps=one.steps, seed=seed)
        for kill in kills:
            if kill.point == "step" and kill.number > one.steps:
                _log.info(f"{kill} will not happen: the training has {one.steps} steps")
        other = self._undisturbed("again", "2")
        differences, earlier, notes = _compared(one, other)
        if differences:
            report = self._report("not_reproducible", one)
            return replace(report, differences=tuple(earlier or differences), notes=tuple(notes))
        return self._killed(one, kills)

    def _undisturbed(self, role: str, name: str) -> TrainingEnd | None:
        run, status = self._train(runs.named(self._plan, name), role)
        if status.state is not State.SUCCEEDED:
            run.result()
        self._seconds.append(status.timings["finished"])
        self._sources.update(dict.fromkeys(runs.unseeded_calls(run)))
        return comparison.end_of(RunPaths(run.url))

    def _train(self, plan: Plan, role: str) -> tuple[Run, Status]:
        self._urls[role] = plan.url
        return runs.train(plan, role, self._clock)

    def _killed(self, one: TrainingEnd, kills: Sequence[Kill]) -> DrillReport:
        plan = runs.with_kills(runs.named(self._plan, "kills"), kills)
        _log.info(f"kills: {', '.join(map(str, kills))}")
        run, status = self._train(plan, "killed")
        if status.state is State.CANCELLED:
            run.result()
        events, done = read_events(run.plan.paths), runs.done(run.plan)
        happened = costs.killed(kills, done, events)
        report = replace(
            self._report("failed", one),
            attempts=status.attempts,
            kills=happened,
            kills_missed=costs.missed(kills, done),
            steps_lost=costs.steps_lost(happened),
            notes=tuple(costs.other_restarts(happened, events)),
        )
        if status.state is not State.SUCCEEDED:
            message = status.failure.message if status.failure else ""
            why = f"{run.id} is {status.state.value} ({status.reason.value}): {message}"
            fault = status.user_fault or status.state is State.CHECKPOINTED
            return replace(report, notes=(*report.notes, why), user_fault=fault)
        lost_s = round(status.timings["finished"] - sum(self._seconds) / len(self._seconds), 3)
        return _judged(one, comparison.end_of(RunPaths(run.url)), run, replace(report, seconds_lost=lost_s))

    def _report(self, verdict: Verdict, one: TrainingEnd | None = None) -> DrillReport:
        return DrillReport(
            verdict=verdict,
            every_steps=self._plan.job.checkpoints.every_steps or 0,
            seed=runs.drill_of(self._plan).seed,
            weights_sha=None if one is None else comparison.digest(one.checkpoint),
            steps=0 if one is None else one.steps,
            sources=tuple(self._sources),
            runs=dict(self._urls),
        )


def _judged(one: TrainingEnd, end: TrainingEnd | None, run: Run, report: DrillReport) -> DrillReport:
    """Return the report on a killed training that finished."""
    differences, earlier, notes = _compared(one, end)
    downgrades: list[str] = runs.downgrades_in_logs(run)
    if end is not None:
        downgrades += comparison.downgrades(end.store)
        # The last kill before the first checkpoint that differs: its restore is the likely cause.
        before = [kill for kill in report.kills if earlier and kill.restored < earlier[0].step]
        notes += [f"The first checkpoint that differs follows this kill: {before[-1]}."] if before else []
        if not differences and end.histories != one.histories:
            notes.append("The History returned by fit differs; the weights are equal.")
    verdict: Verdict = "kills_missed" if report.kills_missed else "passed"
    return replace(
        report,
        verdict="not_equal" if differences else verdict,
        weights_equal=not differences,
        differences=tuple(earlier or differences),
        downgrades=tuple(dict.fromkeys(downgrades)),
        notes=(*report.notes, *notes),
    )


def _compared(
    one: TrainingEnd, other: TrainingEnd | None
) -> tuple[list[ArrayDifference], list[ArrayDifference], list[str]]:
    """Return the differences at the end, the differences of the first checkpoints that differ, and notes."""
    if other is None:
        return [ArrayDifference(array="phases")], [], []
    differences, left_out = comparison.compare_ends(one, other)
    earlier = comparison.first_differences(one.store, other.store) if differences else []
    if not left_out:
        return differences, earlier, []
    phases = ", ".join(map(str, left_out))
    note = f"The end of phase {phases} of the training was not kept: only later phases were compared."
    return differences, earlier, [note]
