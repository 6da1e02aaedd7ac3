"""From settings to a plan, in steps with frozen values between them; all mistakes are reported in one error."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from .. import checks, ids
from ..errors import InputError, InsideTaskError, Problems
from ..job.job import Job
from ..job.plan import Plan
from ..job.values import changed
from ..packaging import never_packaged
from ..runtime.context import inside_task
from .decide import decide
from .look import look
from .pack import pack
from .settings.merge import Destination, Entry, Settings, gather
from .validate import RunRequest, validate


def make_plan(
    what: Entry | Job,
    flat_settings: Mapping[str, object],
    target: Destination,
    environ: Mapping[str, str],
    *,
    verb: str = "plan",
    output: Path | None = None,
) -> Plan:
    """Return the plan for flat settings, or raise InputError with every mistake: for `plan`, `submit` and the command.

    Args:
        what: an entry or a Job, or UNNAMED if `PODLIFT_ENTRY` or the project's file names the entry.
        given: the flat settings.
        target: the backend and its options.
        environ: the variables of the caller.
        verb: the name of the caller; all but "plan" start the plan.
        output: the file that the plan will be written to: it is not packaged.
    """
    refuse_inside_task(verb)
    problems = Problems()
    settings = gather(what, flat_settings, target, environ, problems)
    plan = checked(planned(settings, environ, problems, starting=verb != "plan", output=output), settings)
    # Without --online, a plan asks no service.
    asks = plan.capabilities.runs_here or settings.target.online or verb != "plan"
    if not asks or plan.job.gate.evaluate is None:
        return plan
    from . import trial

    return replace(plan, findings=(*plan.findings, *trial.findings(plan, environ)))


def checked(plan: Plan, settings: Settings, also: Sequence[str] = ()) -> Plan:
    """Return the plan; InputError with its errors and these other mistakes."""
    if bad := [*checks.errors(plan.findings), *also]:
        raise InputError(settings.sourced(bad))
    return plan


def planned(
    settings: Settings,
    environ: Mapping[str, str],
    problems: Problems,
    *,
    starting: bool,
    output: Path | None = None,
) -> Plan:
    """Return the plan for gathered settings, with its errors among the findings; InputError with all other mistakes."""
    request = validate(settings, environ, problems)
    world = look(request, environ, problems)
    with problems.closing(settings.sourced):
        packed = pack(request, world, environ, never_packaged.files_being_written(output))
    return decide(request, world, packed, ids.new_run_id(world.name), starting=starting)


def planned_again(plan: Plan, environ: Mapping[str, str]) -> Plan:
    """Return the plan of a run with the current code of its project; all else stays as it is."""
    entry = plan.code.program if plan.code.kind == "module" else f"{plan.code.program}:{plan.code.function}"
    if plan.code.kind == "script":
        entry = os.path.join(plan.code.project, plan.code.program)
    # The plan of the run has chosen its initial state and the location of its data.
    checkpoints = changed(plan.job.checkpoints, resume_from=None)
    request = RunRequest(
        entry=entry,
        project=plan.code.project,
        job=changed(plan.job, inputs=plan.inputs, checkpoints=checkpoints, warm_start=None),
        is_valid=True,
        backend=plan.backend,
        capabilities=plan.capabilities,
        target=plan.target,
        root=plan.root,
        name=None,
        online=False,
        notes=(),
    )
    problems = Problems()
    world = look(request, environ, problems)
    world = replace(world, root=plan.root, local=plan.local, emulator=plan.emulator)
    world = replace(world, warm_start=plan.warm_start, initial=plan.initial)
    with problems.closing():
        packed = pack(request, world, environ, {})
    current_plan = decide(replace(request, job=plan.job), world, packed, plan.run_id, starting=True)
    return replace(checked(current_plan, Settings(values={}, origins={})), drill=plan.drill, fired=plan.fired)


def refuse_keywords(keywords: Mapping[str, object], other: str) -> None:
    if keywords:
        raise InputError(f"{', '.join(keywords)}: cannot be combined with {other}.")


def refuse_inside_task(verb: str) -> None:
    """Raise InsideTaskError if this process is a task of a run."""
    task = inside_task()
    if task is not None:
        raise InsideTaskError(
            f"sdk.{verb} was called inside the task {task}: the program would start itself again. Put the training into a "
            "function and submit it by name, under a guard that is false in a task:\n"
            "    if __name__ == '__main__':\n"
            "        sdk.submit('train:main')"
        )
