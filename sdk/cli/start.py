"""The verbs that begin something: submit, plan."""

from __future__ import annotations

import json
import os
from typing import Annotated

import typer

from .. import api, backends, config
from ..errors import EXIT_DONE, InputError, Problems
from ..job import Job
from ..planner import Plan
from ..prepare import Target, make_plan, resolve_root
from ..run import Run
from .options import pairs, read, with_settings
from .output import answer, as_json, say, summary
from .watch import follow

Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="ENTRY [-- ARGS]",
        help="train.py, package.module or package.module:function; then argv of the program",
        show_default=False,
    ),
]
Backend = Annotated[str | None, typer.Option("--backend", metavar="B", help="who runs it", show_default=False)]
Root = Annotated[
    str | None, typer.Option("--root", metavar="URL", help="where runs live; default ~/.podlift", show_default=False)
]
Name = Annotated[
    str | None, typer.Option("--name", metavar="S", help="a label; the id adds six characters", show_default=False)
]
Env = Annotated[
    list[str] | None,
    typer.Option("--env", metavar="K=V", help="a variable for every task, repeatable", show_default=False),
]
Json = Annotated[bool, typer.Option("--json", help="one JSON object on stdout at the end")]
Detach = Annotated[bool, typer.Option("--detach", help="return as soon as the run is started")]


@with_settings
def submit(
    words: Words = None,
    backend: Backend = None,
    root: Root = None,
    name: Name = None,
    env: Env = None,
    detach: Detach = False,
    json_output: Json = False,
    given: dict[str, str] | None = None,
) -> None:
    """Run a training program, and watch it: Ctrl-C stops watching, a second one cancels the run."""
    target = Target(backend=backend, root=root, name=name)
    made = _make(words or [], env or [], given or {}, target, "submit")
    say(str(made))
    run = api.execute(made)
    if detach:
        say(f"started. Next: podlift wait {_ref(run)} · podlift logs {_ref(run)} -f · podlift cancel {_ref(run)}")
        code = EXIT_DONE
    else:
        code = follow(run, _ref(run), quiet=json_output)
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
    env: Env = None,
    json_output: Json = False,
    given: dict[str, str] | None = None,
) -> None:
    """Show what submit would do, and change nothing."""
    target = Target(backend=backend, root=root, name=name)
    made = _make(words or [], env or [], given or {}, target, "plan")
    if json_output:
        request = backends.load(made.backend).render(made)
        as_json({**json.loads(made.to_json()), "url": made.url, "request": request.body})
    else:
        answer(str(made))


def _make(words: list[str], env: list[str], texts: dict[str, str], target: Target, verb: str) -> Plan:
    problems = Problems()
    entry, argv = _entry(texts.pop("entry", None), words)
    given = read(texts, problems)
    with problems.collect():
        if argv and "args" in texts:
            raise InputError("--args and words behind -- are two ways to say one thing: use one.")
    if env:
        given["env"] = pairs(env, problems)
    if argv:
        given["args"] = argv
    made = None
    with problems.collect():
        if entry:
            made = make_plan(entry, given, target, os.environ, verb=verb)
        else:
            problems.found.append("No entry. Name a script, package.module or package.module:function.")
            Job(**config.nested({**given, "entry": "none"}))
    problems.raise_if_any()
    if made is None:
        raise AssertionError("a check failed without a problem")
    return made


def _entry(option: str | None, words: list[str]) -> tuple[str | None, list[str]]:
    """Return the entry and the program's argv: the entry is the first word unless it was named otherwise."""
    named = option or os.environ.get(config.SETTINGS["entry"].variable)
    if named:
        return named, words
    return (words[0], words[1:]) if words else (None, [])


def _ref(run: Run) -> str:
    """Return the shortest name under which this shell finds the run again."""
    return run.id if resolve_root(None, os.environ) == run.plan.root else run.url
