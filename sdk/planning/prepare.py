"""From settings to a plan, in steps with frozen values between them; all mistakes are reported in one error."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from .. import backends, checks
from ..checks import gates
from ..errors import InputError, InsideTaskError, Problems
from ..job.job import Job
from ..job.plan import Plan
from ..packaging import never_packaged
from ..runtime.context import inside_task
from . import secrets
from .decide import decide
from .pack import pack
from .settings.merge import Destination, Entry, gather
from .validate import validate


def make_plan(
    what: Entry | Job,
    given: Mapping[str, object],
    target: Destination,
    environ: Mapping[str, str],
    *,
    verb: str = "plan",
    output: Path | None = None,
    resumed: Plan | None = None,
    also: Callable[[Plan], Sequence[str]] = lambda made: (),
    later_inputs: Collection[str] = (),
) -> Plan:
    """Return the plan for flat settings, or raise InputError with every mistake: for `plan`, `submit` and the command.

    `what` is an entry or a Job, or UNNAMED if `PODLIFT_ENTRY` or the project's file names the entry. `output` is the file that
    the plan will be written to: it is not packaged. `resumed` is the plan of the run that goes on with this code. `also`
    returns more mistakes. `later_inputs` are names of inputs that each firing of a schedule has a place for.
    """
    refuse_inside_task(verb)
    problems = Problems()
    settings = gather(what, given, target, environ, problems)
    wanted = validate(settings, environ, problems, resumed)
    if verb != "drill":
        problems.found += gates.mistakes(wanted.job, {*wanted.job.inputs, *later_inputs}, wanted.capabilities)
    online = not problems.found and bool(settings.target.online)
    facts = backends.load(wanted.backend).probe(wanted.job, wanted.target, root=wanted.root, online=online)
    wanted = secrets.pinned(wanted, problems)
    problems.found += secrets.stored(wanted.job, environ, here=wanted.capabilities.runs_here)
    with problems.closing(settings.sourced):
        packed = pack(wanted, facts, never_packaged.files_being_written(output))
    made = decide(wanted, packed, facts, environ, verb=verb, resumed=resumed)
    bad = [*checks.errors(made.findings), *also(made)]
    if bad:
        raise InputError(settings.sourced(bad))
    return made


def refuse_keywords(given: Mapping[str, object], other: str) -> None:
    names = [name for name, value in given.items() if value is not None]
    if names:
        raise InputError(f"{', '.join(names)}: cannot be combined with {other}.")


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
