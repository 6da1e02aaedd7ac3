"""The verbs of sweeps: `podlift sweep VERB`."""

from __future__ import annotations

import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ..clock import SystemClock
from ..errors import InputError, Problems
from ..job import plan_text
from ..job.job import words_of
from ..packaging.project import parse_toml
from ..status import EXIT_CANCELLED, EXIT_DONE, EXIT_USER
from ..storage.paths import usable
from ..sweeps import creation, handle, space
from ..sweeps.handle import Sweep
from ..sweeps.reader import Reader, SweepView
from . import parameters as p
from .help import VerbHelp, group
from .options import CommandLine, with_settings
from .output import answer, as_json, number, relayed, say
from .screen import table, width

if TYPE_CHECKING:
    from ..sweeps.study import Trial

_EXAMPLES = {"--space": "lr=log:1e-5..1e-1", "--metric": "val_accuracy", "--trials": "20"}
_CREATE = f"podlift sweep create train.py {' '.join(' '.join(pair) for pair in _EXAMPLES.items())}"
sweep = group("sweep", help="Search the best parameters of a program by many runs.")


@sweep.command(cls=VerbHelp)
@with_settings(backend=p.Backend, root=p.Root, name=p.SweepLabel, online=p.Online, words=p.Words)
def create(
    command: CommandLine,
    parameters: p.SpaceOption = None,
    metric: p.Metric = "",
    trials: p.Trials = 0,
    mode: p.Mode = "max",
    parallel: p.Parallel = None,
    pruner: p.Pruner = "none",
    sampler: p.SamplerOption = "tpe",
    seed: p.SweepSeed = 0,
    dry_run: p.SweepDryRun = False,
    detach: p.SweepDetach = False,
    json_output: p.Json = False,
) -> None:
    """Start a sweep, or continue the one of that name, and watch it.

    Each trial is a run that gets its parameters as arguments, such as --lr 0.01. Ctrl-C stops watching: here, the sweep goes
    on; on a cloud, its runs do, and the next command that watches starts further trials.
    """
    about = {name: value for name, value in locals().items() if name in creation.CHOSEN}
    problems, search_space = Problems(), dict[str, object]()
    options = {"--space": parameters, "--metric": metric, "--trials": trials}
    problems.messages += [f"{name} is missing. Example: {_CREATE}" for name, value in options.items() if not value]
    with problems.collect():
        search_space |= _space(parameters or []) if parameters else {}
    entry, settings = command.settings(problems)
    problems.raise_if_any()
    prepared = creation.prepare(entry, settings, command.target, {**about, "space": search_space})
    lines = [*prepared.lines(), *plan_text.short(prepared.plan)]
    if dry_run and json_output:
        as_json({**asdict(prepared.spec), "plan": dict(prepared.lines())})
    elif dry_run:
        answer(plan_text.text(lines, width(sys.stdout)))
    else:
        say(plan_text.text(lines, width(sys.stderr)))
        creation.create(prepared)
        _watch(Sweep(prepared.spec.name, root=prepared.plan.root), detach=detach, json_output=json_output)


def _space(texts: list[str]) -> space.Space:
    """Return the space of options NAME=RANGE and of files."""
    tables, options = dict[str, object](), list[str]()
    for text in texts:
        if "=" in text or not text.endswith(".toml"):
            options.append(text)
            continue
        with usable("The file", Path(text)):
            tables |= parse_toml(Path(text).read_bytes(), text)
    return space.from_options(options, tables)


@sweep.command(cls=VerbHelp)
def status(
    name: p.OptionalSweepName = None, journal: p.Journal = None, root: p.Root = None, json_output: p.Json = False
) -> None:
    """Show a sweep with its trials; without a name, list the sweeps."""
    if name is None:
        _list(root, json_output=json_output)
        return
    named = Sweep(name, root=root)
    if journal is not None:
        named.write_journal(journal)
        say(f"Written: {journal}. Next: optuna-dashboard {journal}")
    reading = Reader(named.root, SystemClock()).one(named.name)
    view = reading.readable()
    for problem in reading.problems:
        say(f"podlift: {problem} The other trials are shown.")
    if json_output:
        as_json({**_facts(view), "problems": reading.problems})
    else:
        _show(view)
    if reading.damage:
        raise typer.Exit(reading.damage.exit_code)


def _show(view: SweepView) -> None:
    spec, why = view.record.spec, f": {view.end.why}" if view.end and view.end.why else ""
    lines = [("sweep", spec.name), ("state", f"{view.state}{why}"), ("trials", _counts(view))]
    lines += [("parameter", f"{each}: {values}") for each, values in spec.space.items()]
    answer(plan_text.text([*lines, ("best", _best(view)), *([("log", view.log)] if view.log else [])]))
    rows = [
        (str(each.number), each.state, "-" if each.value is None else number(each.value), str(each.last),
         *(_short(each.params.get(key)) for key in spec.space), each.run, each.why)
        for each in view.trials
    ]  # fmt: skip
    header = ("trial", "state", spec.metric, "epochs", *spec.space, "run", "why")
    table(header, rows, whole=("trial", "run"), under=True)
    if view.state == "STOPPED":
        say(f"No process drives it. Next: podlift sweep resume {spec.name}")


@sweep.command(cls=VerbHelp)
def best(name: p.SweepName, root: p.Root = None, json_output: p.Json = False) -> None:
    """Print the parameters of the best trial, as arguments of the program, and its run.

    The arguments are quoted: eval "podlift submit train.py -- $(podlift sweep best NAME)".
    """
    view = Sweep(name, root=root).read()
    if view.best is None:
        raise InputError(f"The sweep {name!r} has no value yet. Next: podlift sweep status {name}")
    if json_output:
        as_json(_trial(view.best))
        return
    answer(shlex.join(words_of(view.best.params)))
    say(f"{_best(view)}. Next: podlift status {view.best.run}")


@sweep.command(cls=VerbHelp)
def cancel(name: p.SweepName, root: p.Root = None) -> None:
    """Cancel the runs of a sweep, which save a checkpoint, and start no further trial."""
    Sweep(name, root=root).cancel()
    say(f"{name}: its end is requested. Next: podlift sweep status {name} · podlift sweep resume {name}")


@sweep.command(cls=VerbHelp)
def resume(name: p.SweepName, root: p.Root = None, detach: p.SweepDetach = False, json_output: p.Json = False) -> None:
    """Continue a sweep that has ended or that no process drives, and watch it.

    Cancelled trials continue from their checkpoints with the same parameters.
    """
    named = Sweep(name, root=root)
    named.resume()
    _watch(named, detach=detach, json_output=json_output)


def _watch(named: Sweep, *, detach: bool, json_output: bool) -> None:
    view, last_line = named.read(), ""
    if detach and not view.plan.capabilities.supervised_here:
        step = f"podlift sweep resume {named.name}, or podlift schedule serve --root {shlex.quote(named.root)}"
        say(f"On a cloud, the client that waits drives a sweep, or a server. Next: {step}")
    elif not detach:
        with relayed("sweeps"), relayed("backends"):
            for view in named.following():
                if (line := f"{_counts(view)}; best: {_best(view)}") != last_line:
                    say(last_line := line)
        if view.end and view.end.why:
            say(f"{named.name}: {view.end.state}: {view.end.why}")
    if json_output:
        as_json(_facts(view))
    else:
        answer(named.name)
    say(f"Next: podlift sweep status {named.name} · podlift sweep best {named.name}")
    codes = {"FAILED": EXIT_USER, "CANCELLED": EXIT_CANCELLED}
    raise typer.Exit(EXIT_DONE if detach else codes.get(view.state, EXIT_DONE))


def _list(root: str | None, *, json_output: bool) -> None:
    views, problems = handle.listed(root)
    for problem in problems:
        say(f"podlift: {problem}")
    if json_output:
        as_json([_facts(view) for view in views])
        return
    rows = [(view.record.spec.name, view.state, _counts(view), _best(view)) for view in views]
    table(("sweep", "state", "trials", "best"), rows, whole=("sweep",), under=True)
    if not views and not problems:
        say(f"There are no sweeps. Next: {_CREATE}")


def _facts(view: SweepView) -> dict[str, object]:
    about = {"state": view.state, "why": view.end.why if view.end else "", "best": view.best and _trial(view.best)}
    return {**asdict(view.record.spec), **about, "done": [_trial(trial) for trial in view.trials]}


def _trial(trial: Trial) -> dict[str, object]:
    return {name: value for name, value in asdict(trial).items() if name != "notes"}


def _counts(view: SweepView) -> str:
    states = [trial.state for trial in view.trials]
    parts = ", ".join(f"{states.count(state)} {state.lower()}" for state in sorted({*states}))
    return f"{len(states)} of {view.record.spec.trials}{': ' if parts else ''}{parts}"


def _best(view: SweepView) -> str:
    if view.best is None:
        return "none yet"
    values = ", ".join(f"{name} {_short(value)}" for name, value in view.best.params.items())
    return f"{view.record.spec.metric} {number(view.best.value)} of trial {view.best.number}: {values}"


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
