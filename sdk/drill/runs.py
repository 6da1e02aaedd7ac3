"""The three trainings of a drill: their plans, and how each one is watched until it ends."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import get_args

from .. import backends, ids, launch
from ..backends.base import Backend
from ..clock import Clock, SystemClock
from ..errors import PodliftError, Problems
from ..job import cluster, option_classes
from ..job.job import Job
from ..job.layout import RunPaths
from ..job.payload import Drill, Kill, KillTarget
from ..job.plan import Plan
from ..job.policies import Retry
from ..logs import logger
from ..planning.prepare import checked, planned, refuse_inside_task
from ..planning.settings import table
from ..planning.settings.merge import Destination, Entry, gather
from ..records.events import Event, continues
from ..records.kills import Done, KillRecords
from ..records.recorder import read_events
from ..records.sync.index import SyncedRun
from ..run import Run
from ..status import Status
from ..storage import emulator
from ..storage.registry import open_store
from .kills import parse
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
    flat_settings: Mapping[str, object],
    target: Destination,
    environ: Mapping[str, str],
    *,
    kills: Sequence[str],
    seed: int,
) -> Plan:
    """Return the plan of an undisturbed training, or raise an InputError with every mistake."""
    problems = Problems()
    decided = ", ".join(name for name in _DECIDED if flat_settings.get(name) is not None)
    problems.messages += [f"{decided}: a drill sets this itself. Next: leave it out."] if decided else []
    if not kills:
        problems.add("A drill needs a kill. Expected: worker-0@step:50, or random:3.")
    if not 0 <= seed < 2**32:
        problems.add(f"The seed must be a number from 0 to {2**32 - 1}. Received: {seed}.")
    # The project's file or the environment may name a cloud for other runs.
    target = replace(target, backend=target.backend or "local")
    backend = _backend(target, problems)
    targets = get_args(KillTarget) if backend is None else backend.capabilities.drills
    names: list[str] | None = None
    with problems.closing():
        try:
            plan = plan_of(what, flat_settings, target, environ)
            names = plan.tasks
        finally:
            # The kills are checked in any case: against the tasks of the plan, or without a plan against the known tasks.
            wanted_kills: tuple[Kill, ...] = ()
            with problems.collect():
                wanted_kills = parse(kills, _tasks(flat_settings, kills) if names is None else names, targets)
    if disturbs(plan, wanted_kills, kills):
        # Rejects an existing disturbance of the trainings before they start.
        with disturbed(plan, ()):
            pass
    return _undisturbed(plan, seed)


def plan_of(
    what: Entry | Job, flat_settings: Mapping[str, object], target: Destination, environ: Mapping[str, str]
) -> Plan:
    """Return the plan of a training of a drill, which neither registers its model nor starts from one."""
    refuse_inside_task("drill")
    problems = Problems()
    settings = gather(what, flat_settings, target, environ, problems)
    of_models = {name for name, setting in table.settings().items() if setting.group == "gate"}
    of_models |= {"model", "warm_start"}
    with problems.collect():
        # The settings that a drill leaves out are checked too.
        table.job({"entry": "none", **{name: value for name, value in settings.job.items() if name in of_models}})
    problems.messages = settings.sourced(problems.messages)
    return checked(planned(settings.without(of_models), environ, problems, starting=True), settings)


def backend_of(target: Destination) -> tuple[str, Backend | None]:
    """Return the name of the backend, and the backend itself unless it is unknown."""
    name = option_classes.backend_of(target.backend) or str(target.backend)
    return name, backends.load(name) if name in backends.names() else None


def _backend(target: Destination, problems: Problems) -> Backend | None:
    """Return the backend of a drill, None for an unknown one; a problem if it costs money."""
    name, backend = backend_of(target)
    if backend is not None and backend.capabilities.has_price and not emulator.address():
        problems.add(
            f"A drill trains three times and takes machines away, so on {name} it runs on the emulator only, and none is "
            "configured here: PODLIFT_EMULATOR is not set. Nothing was started, and the cloud was not asked. Next: `podlift "
            "emulator --data DIR` and the line that it prints, or drill on this machine (--backend local)."
        )
    return backend


def disturbs(plan: Plan, kills: Sequence[Kill], texts: Sequence[str] = ()) -> bool:
    """Return whether any of these kills is one of more than the process of a task; random ones may be."""
    at_random = len(plan.capabilities.drills) > 1 and any(text.startswith("random") for text in texts)
    return at_random or any(kill.what != "process" for kill in kills)


def disturbed(plan: Plan, kills: Sequence[Kill]) -> AbstractContextManager[None]:
    """Return a context in which these kills of a run can happen."""
    service = backends.load(plan.backend).services.drills
    return service.disturbed(plan, kills) if service else nullcontext()


def _tasks(flat_settings: Mapping[str, object], kills: Sequence[str]) -> list[str]:
    """Return the names of the tasks of a plan that could not be made; if their number is unknown, those in the kills."""
    workers = flat_settings.get("workers")
    if isinstance(workers, int) and 1 <= workers <= 1000:
        return [task.name for task in cluster.tasks(workers, str(flat_settings.get("local_cluster", "chief")))]
    return [word.partition("@")[0] for word in kills]


def _undisturbed(plan: Plan, seed: int) -> Plan:
    saved = plan.job.checkpoints
    every = EVERY_STEPS if saved.every_steps is None else saved.every_steps
    job = replace(
        plan.job,
        checkpoints=replace(saved, every_steps=every, on_busy="block", keep_last=_KEPT),
        retry=Retry(user_errors=0, infrastructure=0, preemptions=0),
        # It determines the order of sets of strings.
        env={"PYTHONHASHSEED": str(seed), **plan.job.env},
    )
    return replace(plan, job=job, drill=Drill(seed=seed))


def named(plan: Plan, role: str) -> Plan:
    """Return the plan of another run of the same job."""
    label = plan.run_id.rpartition("-")[0]
    ending = f"-drill-{role}"
    return replace(plan, run_id=ids.new_run_id(label[: ids.MAX_NAME - len(ending)].rstrip("-") + ending))


def with_kills(plan: Plan, kills: Sequence[Kill]) -> Plan:
    """Return the plan with these kills, and with as many restarts."""
    # A region that is taken away ends a job, and then one that gets no machines.
    infrastructure = len(kills) + sum(kill.what == "region" for kill in kills)
    preemptions = len(kills) if disturbs(plan, kills) else 0
    job = replace(plan.job, retry=replace(plan.job.retry, infrastructure=infrastructure, preemptions=preemptions))
    return replace(plan, job=job, drill=Drill(seed=drill_of(plan).seed, kills=tuple(kills)))


def drill_of(plan: Plan) -> Drill:
    if plan.drill is None:
        raise ValueError(f"The run {plan.run_id} is not part of a drill.")
    return plan.drill


def train(plan: Plan, role: str, clock: Clock) -> tuple[Run, Status]:
    """Run a plan to its end; cancel the run if that is interrupted."""
    kills = drill_of(plan).kills
    with disturbed(plan, kills) if disturbs(plan, kills) else nullcontext():
        return _train(plan, role, clock)


def _train(plan: Plan, role: str, clock: Clock) -> tuple[Run, Status]:
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
    logged: set[tuple[int, str, int]] = set()
    with closing(run.following()) as statuses:
        for status in statuses:
            events = sorted(
                read_events(run.plan.paths, ("restored", "restarting", "final")), key=lambda event: event.time
            )
            for event in events:
                key = (event.attempt, event.source, event.sequence)
                if _is_reported(event, run.plan) and key not in logged:
                    logged.add(key)
                    _log.info(f"{run.id}: {_describe(event, run.plan)}")
            if not status.state.terminal:
                clock.sleep(_POLL_S)
    _log.info(f"{run.id}: {status.state.value} after {status.timings.get('finished', 0.0):.1f} s")
    return status


def _is_reported(event: Event, plan: Plan) -> bool:
    if event.kind == "final":
        return continues(event)
    return event.kind == "restarting" or event.source == plan.tasks[0]


def _describe(event: Event, plan: Plan) -> str:
    if event.kind == "final":
        return f"job {event.data['number']} is over ({event.data['reason']}). {event.data['why']}"
    if event.kind == "restored":
        return f"attempt {event.attempt} continues from step {event.data['step']}"
    hit = [index for index, kill in done(plan).items() if kill["attempt"] == event.attempt]
    if hit:
        return f"attempt {event.attempt} is over: {', '.join(str(drill_of(plan).kills[index]) for index in hit)}"
    failure = event.data.get("failure") or {}
    return f"attempt {event.attempt} is over: {failure.get('message', event.data['reason'])}"


def done(plan: Plan) -> dict[int, Done]:
    """Return the tasks' records of their kills, by the kill's index in the plan."""
    records = KillRecords(plan.paths, None if plan.capabilities.supervised_here else open_store(plan.url))
    recorded = {index: records.done(index) for index in range(len(drill_of(plan).kills))}
    return {index: done for index, done in recorded.items() if done is not None}


def unseeded_calls(run: Run) -> list[UnseededCall]:
    """Return the calls in the tasks of a run that no seed determines."""
    calls = set()
    if not run.plan.capabilities.supervised_here:
        copy = SyncedRun(run.plan.paths, run.url, SystemClock())
        copy.pull([RunPaths("").unseeded(1, task) for task in run.plan.tasks])
    for task in run.plan.tasks:
        path = Path(run.plan.paths.unseeded(1, task))
        if path.exists():
            calls |= {UnseededCall(**json.loads(line)) for line in path.read_text().splitlines()}
    return sorted(calls, key=lambda source: (source.file, source.line))


def downgrades_in_logs(run: Run) -> list[str]:
    """Return each sentence of the logs about state that is not restored exactly, once."""
    mark = "podlift: not exact: "
    return list(dict.fromkeys(line.text.removeprefix(mark) for line in run.logs() if line.text.startswith(mark)))
