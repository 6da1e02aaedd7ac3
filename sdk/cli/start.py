"""The verbs that start a run: submit, plan."""

from __future__ import annotations

import json
import os
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from .. import backends, launch
from ..errors import InputError, Problems
from ..packaging.paths import usable
from ..planning.prepare import make_plan, refuse_inside_task
from ..planning.roots import configured_root
from ..planning.settings import table
from ..planning.settings.merge import UNNAMED, Target, complaints
from ..run import Run
from ..spec import plan_text
from ..spec.plan import Plan
from ..status import EXIT_DONE
from .options import pairs, read, variables, with_settings
from .output import answer, as_json, say, summary, width
from .watch import follow

Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="ENTRY [-- ARGS]",
        help="train.py, train.ipynb, a folder, package.module, package.module:function or a plan.json; then its arguments.",
        show_default=False,
    ),
]
Backend = Annotated[
    str | None,
    typer.Option("--backend", metavar="NAME", help="Where the run executes: local or vertex.", show_default=False),
]
Root = Annotated[
    str | None,
    typer.Option(
        "--root", metavar="URL", help="Folder or gs://BUCKET/PREFIX for runs. Default: ~/.podlift.", show_default=False
    ),
]
Name = Annotated[
    str | None,
    typer.Option("--name", metavar="NAME", help="Label of the run; its id adds six characters.", show_default=False),
]
Online = Annotated[
    bool | None,
    typer.Option(
        "--online/--no-online", help="Also check the bucket, the image and the quotas in the cloud.", show_default=False
    ),
]
Env = Annotated[
    list[str] | None,
    typer.Option(
        "--env",
        metavar="K[=V]",
        help="Environment variable of every task; K alone copies yours. Repeatable.",
        show_default=False,
    ),
]
Inputs = Annotated[
    list[str] | None,
    typer.Option(
        "--input", "--inputs", metavar="K=URL", help="Data by name: a path or a URL. Repeatable.", show_default=False
    ),
]
Output = Annotated[
    Path | None,
    typer.Option(
        "-o",
        "--output",
        metavar="FILE",
        help="Write the plan to this file, for podlift submit FILE.",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout at the end.")]
Verbose = Annotated[bool, typer.Option("-v", "--verbose", help="Print the whole plan first, as podlift plan does.")]
Detach = Annotated[bool, typer.Option("--detach", help="Return as soon as the run has started.")]


@with_settings
def submit(
    words: Words = None,
    backend: Backend = None,
    root: Root = None,
    name: Name = None,
    online: Online = None,
    env: Env = None,
    inputs: Inputs = None,
    detach: Detach = False,
    verbose: Verbose = False,
    json_output: Json = False,
    given: dict[str, Any] | None = None,
) -> None:
    """Run a training program and watch it.

    Ctrl-C stops watching; a second Ctrl-C cancels the run.
    """
    target = Target(backend=backend, root=root, name=name, online=online)
    command = CommandLine(words or [], env or [], inputs or [], given or {}, target)
    made = _read_plan(command) if command.is_plan else _make(command, "submit")
    shown = plan_text.lines(made) if verbose else plan_text.short(made)
    say(plan_text.text(shown, width(sys.stderr)))
    run = Run(launch.execute(made, exact=command.is_plan))
    if detach:
        ref = reference(run)
        say(f"started. Next: podlift wait {ref} · podlift logs {ref} -f · podlift cancel {ref}")
        code = EXIT_DONE
    else:
        code = follow(run, reference(run), quiet=json_output)
    if json_output:
        as_json(summary(run, run.status()))
    elif detach:
        answer(run.url)
    raise typer.Exit(code)


@with_settings
def plan(
    words: Words = None,
    backend: Backend = None,
    root: Root = None,
    name: Name = None,
    online: Online = None,
    env: Env = None,
    inputs: Inputs = None,
    output: Output = None,
    json_output: Json = False,
    given: dict[str, Any] | None = None,
) -> None:
    """Show what submit would do, without changing anything."""
    target = Target(backend=backend, root=root, name=name, online=online)
    made = _make(CommandLine(words or [], env or [], inputs or [], given or {}, target), "plan", _earlier(output))
    if output is not None:
        _write_plan(made, output)
    if json_output:
        request = backends.load(made.backend).render(made)
        request_url = {"request_url": request.url} if request.url else {}
        as_json({**json.loads(made.to_json()), "url": made.url, **request_url, "request": request.body})
    else:
        answer(plan_text.text(plan_text.lines(made), width(sys.stdout)))


@dataclass(frozen=True)
class CommandLine:
    """The words and options of a command that starts a run, as text."""

    words: list[str]
    env: list[str]
    inputs: list[str]
    texts: dict[str, Any]
    target: Target

    @property
    def is_plan(self) -> bool:
        return bool(self.words) and self.words[0].endswith(".json")

    def settings(self, problems: Problems) -> tuple[Any, dict[str, Any]]:
        """Return the entry and the settings; mistakes go to `problems`."""
        texts = dict(self.texts)
        entry, argv = _entry(texts.pop("entry", None), self.words)
        given = read(texts, problems)
        with problems.collect():
            if argv and "args" in texts:
                raise InputError("--args and words after -- are two ways to give arguments: use one.")
        if self.env:
            given["env"] = variables(self.env)
        if self.inputs:
            given["inputs"] = pairs("--input", self.inputs, problems)
        if argv:
            given["args"] = argv
        return entry or UNNAMED, given


def _make(command: CommandLine, verb: str, output: Path | None = None) -> Plan:
    problems = Problems()
    entry, given = command.settings(problems)
    made = None
    with problems.collect():
        made = make_plan(entry, given, command.target, os.environ, verb=verb, output=output)
    problems.raise_if_any()
    if made is None:
        raise AssertionError("a check failed without a problem")
    return made


def _entry(option: str | None, words: list[str]) -> tuple[str | None, list[str]]:
    """Return the entry and the program's argv: the entry is the first word unless an option or variable names it."""
    named = option or os.environ.get(table.SETTINGS["entry"].variable)
    if named:
        return named, words
    return (words[0], words[1:]) if words else (None, [])


def _write_plan(made: Plan, output: Path) -> None:
    if output.suffix != ".json":
        raise InputError(
            f"The file of a plan must end in '.json', so that submit recognizes it. Received: {str(output)!r}."
        )
    with usable("The output", output):
        # Do not overwrite another file by mistake: `-o package.json`.
        if output.is_file() and not _is_plan(output.read_bytes()):
            raise InputError(
                f"The output exists and is not a plan. Received: {str(output)!r}. Nothing was written. Next: choose another "
                "file."
            )
        output.write_text(made.to_json() + "\n", encoding="utf-8")
    say(f"Written: {output}. Next: podlift submit {shlex.quote(str(output))}")


def _earlier(output: Path | None) -> Path | None:
    """Return the file of an earlier plan that is replaced: packaging it would change the new plan."""
    try:
        return output if output is not None and output.is_file() and _is_plan(output.read_bytes()) else None
    except (OSError, ValueError):
        return None


def _is_plan(data: bytes) -> bool:
    """True for a plan of any version, and for an empty file."""
    try:
        found = json.loads(data) if data.strip() else None
    except (ValueError, RecursionError):
        return False
    return found is None or (isinstance(found, dict) and {"version", "run_id", "digest"} <= found.keys())


def _read_plan(command: CommandLine) -> Plan:
    """Return the plan that `podlift plan -o` wrote, which cannot be combined with settings."""
    path, *more = command.words
    settings = [*more, *command.env, *command.inputs, *command.texts]
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


def reference(run: Run) -> str:
    """Return the shortest reference by which this shell finds the run."""
    return run.id if configured_root(None, os.environ) == run.plan.root else run.url
