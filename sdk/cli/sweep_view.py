"""Sweeps for the page and the report."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..sweeps.reader import SweepReading
from ..ui.model import argument_rows
from ..ui.sweeps import TRIALS, Axis, SweepView, TrialView

if TYPE_CHECKING:
    from ..sweeps.study import Trial


def view_of(reading: SweepReading) -> SweepView:
    """Return a sweep for the page. One that cannot be read has the reason."""
    if reading.view is None:
        return SweepView(name=reading.name, state="damaged", problems=reading.problems)
    view, spec = reading.view, reading.view.record.spec
    sign = -1 if spec.mode == "max" else 1
    trials = [_trial(trial) for trial in view.trials]
    best = None if view.best is None else trials[view.best.number]
    # A trial that was stopped early may have a better value than the best of those that trained to their end.
    ranked = sorted(
        trials, key=lambda trial: (trial != best, trial.value is None, sign * (trial.value or 0.0), trial.number)
    )
    spent = [usd for trial in view.trials if (usd := trial.spent_usd) is not None]
    search = f"{spec.mode} of {spec.metric} by {spec.sampler}, seed {spec.seed}"
    rules = [("search", search), ("pruner", spec.pruner), ("at a time", str(spec.parallel))]
    rules += [(name, str(each)) for name, each in spec.space.items()]
    rules += [("log of the driver", view.log)] if view.log else []
    return SweepView(
        name=reading.name,
        state=view.state.lower(),
        why=view.end.why if view.end else "",
        metric=spec.metric,
        mode=spec.mode,
        of=spec.trials,
        begun=len(trials),
        done=sum(not trial.is_open for trial in view.trials),
        trials=sorted(ranked[:TRIALS], key=lambda trial: trial.number),
        left_out=max(len(trials) - TRIALS, 0),
        best=best,
        steps=_steps(view.trials, sign),
        axes=[
            Axis(name=name, low=each.low, high=each.high, log=each.log, options=each.options or ())
            for name, each in spec.space.items()
        ],
        cost_usd=sum(spent) if spent else None,
        limit_usd=spec.max_cost_usd,
        program=view.plan.job.entry,
        arguments=[(name, value) for name, value in argument_rows(view.plan) if name not in spec.space],
        rules=rules,
        problems=[f"{problem} The other trials are shown." for problem in reading.problems],
    )


def _trial(trial: Trial) -> TrialView:
    return TrialView(
        number=trial.number,
        state=trial.state.lower(),
        params=trial.params,
        value=trial.value if trial.value is not None and math.isfinite(trial.value) else None,
        curve={epoch: value for epoch, value in trial.curve.items() if math.isfinite(value)},
        run=trial.run,
        why=trial.why,
    )


def _steps(trials: Sequence[Trial], sign: int) -> list[tuple[int, float]]:
    """Return each trial that was better than all before it; those that were stopped count only if no other has a value."""
    valued = [trial for trial in trials if trial.value is not None and math.isfinite(trial.value)]
    steps = list[tuple[int, float]]()
    for trial in [each for each in valued if each.state == "COMPLETE"] or valued:
        if trial.value is not None and (not steps or sign * trial.value < sign * steps[-1][1]):
            steps.append((trial.number, trial.value))
    return steps
