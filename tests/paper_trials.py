"""Runs of a sweep's trials on paper: each look at a run trains it for an epoch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support import FakeClock

import sdk
from sdk import Reason, State, Status
from sdk.job.plan import Plan
from sdk.planning.settings.merge import Destination
from sdk.sweeps import creation
from sdk.sweeps.driver import Driver, TrialRuns

SPACE = {"lr": "log:1e-4..1e-1", "units": [16, 32, 64]}


@dataclass
class PaperRun:
    plan: Plan
    epochs: int = 0
    state: State = State.RUNNING
    reason: Reason = Reason.TRAINING
    since: float = 0.0
    resumes: int = 0
    cancelled: bool = False


def score(plan: Plan, epoch: int) -> float:
    """The metric after an epoch, which follows from the parameters alone."""
    args = plan.job.args
    return round(epoch * (1 - abs(args["lr"] - 0.01)) + args["units"] / 100, 6)


class PaperTrials(TrialRuns):
    """Runs that need no process; they outlive every driver."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock)
        self.clock, self.all, self.begun = clock, dict[str, PaperRun](), Counter[str]()
        self.epochs, self.metric, self.score = 9, "score", score
        self.fails: Callable[[PaperRun], Status | None] = lambda run: None

    def submit(self, plan: Plan) -> None:
        if plan.url not in self.all:
            self.begun[plan.run_id] += 1
            self.all[plan.url] = PaperRun(plan)

    def status(self, url: str) -> Status:
        run = self.all[url]
        if run.state is State.RUNNING:
            run.epochs += not run.cancelled
            run.since = self.clock.now()
            if run.cancelled:
                run.state, run.reason = State.CANCELLED, Reason.CANCELLED
            elif run.epochs >= self.epochs:
                run.state, run.reason = State.SUCCEEDED, Reason.DONE
            elif (end := self.fails(run)) is not None:
                run.state, run.reason = end.state, end.reason
        return Status(state=run.state, reason=run.reason, since=run.since)

    def metrics(self, url: str) -> list[dict[str, Any]]:
        run = self.all[url]
        epochs = range(1, run.epochs + 1)
        return [{"epoch": each, "step": each, "metrics": {self.metric: self.score(run.plan, each)}} for each in epochs]

    def cancel(self, url: str) -> None:
        self.all[url].cancelled = True

    def resume(self, url: str) -> None:
        run = self.all[url]
        run.state, run.reason, run.cancelled, run.resumes = State.RUNNING, Reason.TRAINING, False, run.resumes + 1


@dataclass
class World:
    """A root with one sweep, and its runs."""

    root: str
    program: Path
    clock: FakeClock
    runs: PaperTrials
    given: dict[str, Any] = field(default_factory=dict)

    def create(self, name: str = "one", **about: Any) -> sdk.Sweep:
        chosen = {"space": SPACE, "metric": "score", "mode": "max", "trials": 8, "parallel": 2, "sampler": "random"}
        wanted = {**chosen, "pruner": "none", "seed": 0, **about}
        target = Destination(name=name, root=self.root)
        creation.create(creation.prepare(str(self.program), self.given, target, wanted), self.clock)
        return sdk.Sweep(name, root=self.root, clock=self.clock)

    def done(self, name: str = "one", **about: Any) -> sdk.Sweep:
        """Create a sweep, or continue it, and drive it to its end."""
        sweep = self.create(name, **about)
        assert self.driver(name).run().state == "DONE"
        return sweep

    def driver(self, name: str = "one") -> Driver:
        return Driver(self.root, name, self.clock, self.runs)
