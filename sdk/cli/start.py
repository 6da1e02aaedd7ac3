"""The verbs that start a run: submit, plan."""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path
from typing import NoReturn

import typer

from .. import backends, launch
from ..backends.services import ManifestService
from ..errors import InputError, Problems
from ..job import plan_text
from ..job.plan import Plan
from ..planning.prepare import make_plan, refuse_inside_task
from ..planning.references import shortest
from ..planning.settings import table
from ..planning.settings.merge import complaints
from ..run import Run
from ..status import EXIT_DONE
from ..storage.paths import usable
from ..text import emulator_at
from .options import CommandLine, with_settings
from .output import answer, as_json, relayed, say, summary
from .parameters import (
    Backend,
    Detach,
    Json,
    ManifestFile,
    Name,
    NoStart,
    Online,
    PlanFile,
    Root,
    Verbose,
    WholePlan,
    WordsOrPlan,
)
from .screen import width
from .watch import follow

_MANIFESTS = (".yaml", ".yml")


@with_settings(backend=Backend, root=Root, name=Name, online=Online, words=WordsOrPlan)
def submit(
    command: CommandLine,
    detach: Detach = False,
    verbose: Verbose = False,
    json_output: Json = False,
    no_start: NoStart = False,
    output: ManifestFile = None,
) -> None:
    """Run a training program and watch it.

    Ctrl-C stops watching; a second Ctrl-C cancels the run.
    """
    if no_start != (output is not None):
        raise InputError("--no-start and -o FILE.yaml belong together: the file is what starts the run.")
    plan = _read_plan(command) if command.is_plan else _make(command, "submit", _earlier(output))
    text_lines = plan_text.lines(plan) if verbose else plan_text.short(plan)
    say(plan_text.text(text_lines, width(sys.stderr)))
    if no_start and output is not None:
        _store(plan, output, is_plan=command.is_plan)
        return
    with relayed("backends"):
        run = Run(launch.execute(plan) if command.is_plan else launch.submit(plan))
    address = "" if run.plan.capabilities.runs_here else run.plan.emulator
    start_text = f"started on the {emulator_at(address)}" if address else "started"
    accompany(run, start_text, detach=detach, json_output=json_output, each_task=verbose)


def accompany(run: Run, start_text: str, *, detach: bool, json_output: bool, each_task: bool = False) -> NoReturn:
    """Follow a run that has begun, or say how to with `detach`, and exit."""
    ref = shortest(run.plan, os.environ)
    if detach:
        say(f"{start_text}. Next: podlift wait {ref} · podlift logs {ref} -f · podlift cancel {ref}")
        code = EXIT_DONE
    else:
        code = follow(run, ref, quiet=json_output, each_task=each_task)
    if json_output:
        as_json(summary(run, run.status()))
    elif detach:
        answer(run.url)
    raise typer.Exit(code)


@with_settings(backend=Backend, root=Root, name=Name, online=Online, words=WordsOrPlan)
def plan(command: CommandLine, output: PlanFile = None, verbose: WholePlan = False, json_output: Json = False) -> None:
    """Show what submit would do, without changing anything."""
    plan = _make(command, "plan", _earlier(output))
    if output is not None:
        _write_plan(plan, output)
    if json_output:
        request = backends.load(plan.backend).render(plan)
        request_url = {"request_url": request.url} if request.url else {}
        as_json({**json.loads(plan.to_json()), "url": plan.url, **request_url, "request": request.body})
    else:
        answer(plan_text.text(plan_text.lines(plan) if verbose else plan_text.page(plan), width(sys.stdout)))


def _make(command: CommandLine, verb: str, output: Path | None = None) -> Plan:
    problems = Problems()
    entry, settings = command.settings(problems)
    with problems.closing(), relayed("planning"):
        return make_plan(entry, settings, command.target, os.environ, verb=verb, output=output)


def _write_plan(plan: Plan, output: Path) -> None:
    received = f"Received: {str(output)!r}."
    if output.suffix in _MANIFESTS:
        service = _manifests(plan, output)
        output.write_text(service.manifest(plan), encoding="utf-8")
        say(
            f"Written: {output}, the objects of this run. Next: podlift submit ... --no-start -o FILE stores its code, too"
        )
        return
    if output.suffix != ".json":
        raise InputError(f"The file of a plan must end in '.json', so that submit recognizes it. {received}")
    with usable("The output", output):
        # Do not overwrite another file by mistake: `-o package.json`.
        if output.is_file() and not _is_plan(output.read_bytes()):
            next_step = "Nothing was written. Next: choose another file."
            raise InputError(f"The output exists and is not a plan. {received} {next_step}")
        output.write_text(plan.to_json() + "\n", encoding="utf-8")
    say(f"Written: {output}. Next: podlift submit {shlex.quote(str(output))}")


def _store(plan: Plan, output: Path, *, is_plan: bool) -> None:
    """Store a run with all that its tasks read, and write the objects with which another tool starts it."""
    service = _manifests(plan, output)
    stored = launch.execute(plan, starts=False) if is_plan else launch.submit(plan, starts=False)
    output.write_text(service.store(stored), encoding="utf-8")
    start = service.how_to_start(stored, str(output))
    say(f"Written: {output}. The run is stored, and not started. Next: {start}; podlift wait {stored.url}")
    answer(stored.url)


def _manifests(plan: Plan, output: Path) -> ManifestService:
    """Return the service that writes manifests; InputError if there is none, or for another file of that name."""
    service = backends.load(plan.backend).services.manifests
    if service is None:
        raise InputError(
            f"The backend {plan.backend!r} has no manifests. Received: {str(output)!r}. Next: podlift plan -o plan.json."
        )
    with usable("The output", output):
        if output.suffix not in _MANIFESTS or (output.exists() and not _is_manifest(output)):
            raise InputError(
                f"The output must be a new FILE.yaml, or a manifest of podlift. Received: {str(output)!r}. Nothing was written."
            )
        output.touch()
    return service


def _is_manifest(output: Path) -> bool:
    text = output.read_bytes()
    return not text or (output.suffix in _MANIFESTS and text.startswith(b"# The run "))


def _earlier(output: Path | None) -> Path | None:
    """Return the file of an earlier plan that is replaced: packaging it would change the new plan."""
    try:
        if output is not None and output.is_file() and _is_manifest(output):
            return output
        return output if output is not None and output.is_file() and _is_plan(output.read_bytes()) else None
    except (OSError, ValueError):
        return None


def _is_plan(data: bytes) -> bool:
    """True for a plan of any version, and for an empty file."""
    try:
        value = json.loads(data) if data.strip() else None
    except (ValueError, RecursionError):
        return False
    return value is None or (isinstance(value, dict) and {"version", "run_id", "digest"} <= value.keys())


def _read_plan(command: CommandLine) -> Plan:
    """Return the plan that `podlift plan -o` wrote, which cannot be combined with settings."""
    path, *settings = command.words_and_options
    target = {name: getattr(command.target, name) for name in table.TARGET}
    if settings or any(value is not None for value in target.values()):
        raise InputError(
            f"A plan cannot be combined with settings, which it already fixes: {path!r}. Next: plan again."
        )
    refuse_inside_task("submit")
    for sentence in complaints(os.environ, Path.cwd()):
        say(f"podlift: ignored: {sentence}")
    with usable("The plan", path):
        return Plan.from_json(Path(path).read_bytes(), path)
