"""The three trainings of a drill: their plans, and how each one is watched until it ends."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

from .. import ids, launch
from ..clock import Clock
from ..errors import PodliftError, Problems
from ..logs import logger
from ..planning.prepare import make_plan
from ..planning.settings.merge import Destination, Entry
from ..records.events import Event
from ..records.recorder import read_events
from ..run import Run
from ..spec import cluster
from ..spec.job import Job
from ..spec.payload import Drill, Kill
from ..spec.plan import Plan
from ..spec.policies import Retry
from ..status import Status
from .kills import Done, parse
from .report import UnseededCall

_log = logger("drill")

EVERY_STEPS = 10
# A drill compares two trainings step by step, so retention must not remove checkpoints.
_KEPT = 1000
# A drill sets these itself, so that every training saves at the same steps and only the kills disturb it.
_DECIDED = (
    "checkpoint_keep_last", "checkpoint_on_busy", "retry_user_errors", "retry_infrastructure", "retry_preemptions",
)  # fmt: skip
_POLL_S = 0.2
_CANCEL_S = 30.0


def prepare(
    what: Entry | Job,
    given: Mapping[str, object],
    target: Destination,
    environ: Mapping[str, str],
    *,
    kills: Sequence[str],
    seed: int,
) -> Plan:
    """Return the plan of an undisturbed training, or raise an InputError with every mistake."""
    problems = Problems()
    decided = ", ".join(name for name in _DECIDED if given.get(name) is not None)
    problems.found += [f"{decided}: a drill sets this itself. Next: leave it out."] if decided else []
    if not kills:
        problems.found.append("A drill needs a kill. Expected: worker-0@step:50, or random:3.")
    if not 0 <= seed < 2**32:
        problems.found.append(f"The seed must be a number from 0 to {2**32 - 1}. Received: {seed}.")
    names: list[str] | None = None
    with problems.closing():
        try:
            made = make_plan(what, given, replace(target, backend="local"), environ, verb="drill")
            names = made.tasks
        finally:
            # The kills are checked in any case: against the tasks of the plan, or against what is known of them.
            with problems.collect():
                parse(kills, _tasks(given, kills) if names is None else names)
    return _undisturbed(made, seed)


def _tasks(given: Mapping[str, object], kills: Sequence[str]) -> list[str]:
    """Return the names of the tasks of a plan that could not be made; if their number is unknown, those in the kills."""
    workers = given.get("workers")
    if isinstance(workers, int) and 1 <= workers <= 1000:
        return [task.name for task in cluster.tasks(workers, str(given.get("local_cluster", "chief")))]
    return [word.partition("@")[0] for word in kills]


def _undisturbed(made: Plan, seed: int) -> Plan:
    saved = made.job.checkpoints
    every = EVERY_STEPS if saved.every_steps is None else saved.every_steps
    job = replace(
        made.job,
        checkpoints=replace(saved, every_steps=every, on_busy="block", keep_last=_KEPT),
        retry=Retry(user_errors=0, infrastructure=0, preemptions=0),
        # It determines the order of sets of strings.
        env={"PYTHONHASHSEED": str(seed), **made.job.env},
    )
    return made.for_run(made.run_id, job, Drill(seed=seed))


def named(plan: Plan, role: str) -> Plan:
    """Return the plan of another run of the same job."""
    label = plan.run_id.rpartition("-")[0]
    ending = f"-drill-{role}"
    return plan.for_run(ids.new_run_id(label[: ids.MAX_NAME - len(ending)].rstrip("-") + ending))


def with_kills(plan: Plan, kills: Sequence[Kill]) -> Plan:
    """Return the plan with these kills, and with as many restarts."""
    job = replace(plan.job, retry=replace(plan.job.retry, infrastructure=len(kills)))
    return plan.for_run(plan.run_id, job, Drill(seed=drill_of(plan).seed, kills=tuple(kills)))


def drill_of(plan: Plan) -> Drill:
    if plan.drill is None:
        raise ValueError(f"The run {plan.run_id} is not part of a drill.")
    return plan.drill


def train(plan: Plan, role: str, clock: Clock) -> tuple[Run, Status]:
    """Run a plan to its end; cancel the run if that is interrupted."""
    run = Run(launch.execute(plan))
    try:
        _log.info(f"{role}: {run.url}")
        status = _watch(run, clock)
        # A run in a bucket ends when everything is uploaded.
        run.wait()
        return run, status
    except BaseException:
        with suppress(PodliftError):
            run.cancel(grace_s=0)
            run.wait(_CANCEL_S)
        raise


def _watch(run: Run, clock: Clock) -> Status:
    logged = 0
    with closing(run.following()) as statuses:
        for status in statuses:
            events = sorted(read_events(run.plan.paths, ("restored", "restarting")), key=lambda event: event.time)
            relevant = [event for event in events if event.source in (run.plan.tasks[0], "supervisor")]
            for event in relevant[logged:]:
                _log.info(f"{run.id}: {_describe(event, run.plan)}")
            logged = len(relevant)
            if not status.state.terminal:
                clock.sleep(_POLL_S)
    _log.info(f"{run.id}: {status.state.value} after {status.timings.get('finished', 0.0):.1f} s")
    return status


def _describe(event: Event, plan: Plan) -> str:
    if event.kind == "restored":
        return f"attempt {event.attempt} continues from step {event.data['step']}"
    hit = [index for index, kill in done(plan).items() if kill["attempt"] == event.attempt]
    if hit:
        return f"attempt {event.attempt} is over: {', '.join(str(drill_of(plan).kills[index]) for index in hit)}"
    failure = event.data.get("failure") or {}
    return f"attempt {event.attempt} is over: {failure.get('message', event.data['reason'])}"


def done(plan: Plan) -> dict[int, Done]:
    """Return what tasks recorded about their kills, by the kill's index in the plan."""
    files = {index: Path(plan.paths.kill(index)) for index in range(len(drill_of(plan).kills))}
    return {index: json.loads(file.read_bytes()) for index, file in files.items() if file.exists()}


def unseeded_calls(run: Run) -> list[UnseededCall]:
    """Return the calls in the tasks of a run that no seed determines."""
    found = set()
    for task in run.plan.tasks:
        path = Path(run.plan.paths.unseeded(1, task))
        if path.exists():
            found |= {UnseededCall(**json.loads(line)) for line in path.read_text().splitlines()}
    return sorted(found, key=lambda source: (source.file, source.line))


def downgrades_in_logs(run: Run) -> list[str]:
    """Return each sentence of the logs about state that is not restored exactly, once."""
    mark = "podlift: not exact: "
    return list(dict.fromkeys(line.text.removeprefix(mark) for line in run.logs() if line.text.startswith(mark)))
