"""The verbs that begin something: submit, plan."""

from __future__ import annotations

import json
import os
from typing import Annotated, Any

import typer

from .. import api, backends
from ..errors import EXIT_DONE, InputError, PodliftError, Problems
from ..planner import Plan
from ..prepare import Target, make_plan, resolve_root
from ..run import Run
from .options import read, with_settings
from .output import answer, as_json, refusal, say, summary
from .watch import follow

Entry = Annotated[
    str | None,
    typer.Argument(metavar="ENTRY", help="train.py, package.module or package.module:function", show_default=False),
]
Words = Annotated[
    list[str] | None, typer.Argument(metavar="[-- ARGS...]", help="argv of the program", show_default=False)
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
    entry: Entry = None,
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
    try:
        target = Target(backend=backend, root=root, name=name)
        made = _make(entry, words, env, given or {}, target, "submit")
        say(str(made))
        run = api.execute(made)
    except PodliftError as error:
        if json_output:
            as_json(refusal(error.problems if isinstance(error, InputError) else (str(error),), error.exit_code))
        raise
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
    entry: Entry = None,
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
    made = _make(entry, words, env, given or {}, target, "plan")
    if json_output:
        request = backends.load(made.backend).render(made)
        as_json({**json.loads(made.to_json()), "url": made.url, "request": request.body})
    else:
        answer(str(made))


def _make(
    entry: str | None,
    words: list[str] | None,
    env: list[str] | None,
    texts: dict[str, str],
    target: Target,
    verb: str,
) -> Plan:
    problems = Problems()
    given: dict[str, Any] = {}
    with problems.collect():
        given = read(texts)
    entry = entry or os.environ.get("PODLIFT_ENTRY")
    with problems.collect():
        if entry is None:
            raise InputError("No entry. Name a script, package.module or package.module:function.")
    with problems.collect():
        if words and "args" in texts:
            raise InputError("--args and words behind -- are two ways to say one thing: use one.")
    with problems.collect():
        if env:
            given = {**given, "env": _pairs(env)}
    if words:
        given = {**given, "args": words}
    made = None
    with problems.collect():
        made = make_plan(entry, given, target, os.environ, verb=verb) if entry else None
    problems.raise_if_any()
    if made is None:
        raise AssertionError("a check failed without a problem")
    return made


def _pairs(texts: list[str]) -> dict[str, str]:
    bad = [text for text in texts if "=" not in text]
    if bad:
        raise InputError([f"--env takes NAME=VALUE. Received: {text!r}." for text in bad])
    return dict(text.split("=", 1) for text in texts)


def _ref(run: Run) -> str:
    """Return the shortest name under which this shell finds the run again."""
    return run.id if resolve_root(None, os.environ) == run.plan.root else run.url
