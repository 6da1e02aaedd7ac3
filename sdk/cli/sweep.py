"""The verbs of sweeps: `podlift sweep VERB`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import typer

from ..errors import InputError, Problems
from ..job import plan_text
from ..packaging.project import parse_toml
from ..status import EXIT_CANCELLED, EXIT_DONE, EXIT_USER
from ..storage.paths import usable
from ..sweeps import creation, handle, space
from ..sweeps.handle import Sweep, SweepView
from . import parameters as p
from .help import VerbHelp, group
from .options import CommandLine, with_settings
from .output import answer, as_json, number, relayed, say
from .screen import table, width

sweep = group("sweep", help="Search the best parameters of a program by many runs.")


@sweep.command(cls=VerbHelp)
@with_settings(backend=p.Backend, root=p.Root, name=p.SweepLabel, online=p.Online, words=p.Words)
def create(
    command: CommandLine,
    parameters: p.SpaceOption = None,
    metric: p.Metric = None,
    trials: p.Trials = None,
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
    problems, known = Problems(), dict[str, object]()
    with problems.collect():
        known = {**_space(parameters or [])}
    needed = (("--space", parameters), ("--metric", metric), ("--trials", trials))
    problems.found += [f"{name} is missing. Example: {_EXAMPLES[name]}" for name, value in needed if not value]
    entry, given = command.settings(problems)
    problems.raise_if_any()
    prepared = creation.prepare(
        entry,
        given,
        command.target,
        parameters=known,
        metric=metric or "",
        trials=trials or 0,
        mode=mode,
        parallel=parallel,
        pruner=pruner,
        sampler=sampler,
        seed=seed,
    )
    lines = [*prepared.lines(), *plan_text.short(prepared.plan)]
    if dry_run:
        shown = {**asdict(prepared.spec), "plan": dict(prepared.lines())}
        as_json(shown) if json_output else answer(plan_text.text(lines, width(sys.stdout)))
        return
    say(plan_text.text(lines, width(sys.stderr)))
    creation.create(prepared)
    _watch(Sweep(prepared.spec.name, root=prepared.plan.root), detach=detach, json_output=json_output)


_EXAMPLES = {"--space": "--space lr=log:1e-5..1e-1", "--metric": "--metric val_accuracy", "--trials": "--trials 20"}


def _space(texts: list[str]) -> space.Space:
    """Return the space of options NAME=RANGE and of files."""
    read, options = dict[str, object](), list[str]()
    for text in texts:
        if "=" in text or not text.endswith(".toml"):
            options.append(text)
            continue
        with usable("The file", Path(text)):
            content = parse_toml(Path(text).read_bytes(), text)
        found = content.get("space", content)
        if not isinstance(found, dict) or ("space" in content and len(content) > 1):
            raise InputError(
                f"The file has other tables than [space]. Received: {text!r}. Example: lr = 'log:1e-5..1e-1'."
            )
        read |= found
    return space.from_options(options, read)


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
    view = named.read()
    if json_output:
        as_json(_facts(view))
        return
    spec = view.record.spec
    why = f": {view.end.why}" if view.end and view.end.why else ""
    lines = [("sweep", spec.name), ("state", f"{view.state}{why}"), ("trials", _counts(view))]
    lines += [("parameter", f"{each}: {values}") for each, values in spec.space.items()]
    lines += [("best", _best(view))] + ([("log", view.log)] if view.log else [])
    answer(plan_text.text(lines))
    metric, names = spec.metric, list(spec.space)
    rows = [
        (str(each.number), each.state, number(each.value) if each.curve else "-", str(each.last),
         *(_short(each.params.get(key)) for key in names), each.run, each.why)
        for each in view.trials
    ]  # fmt: skip
    table(("trial", "state", metric, "epochs", *names, "run", "why"), rows, whole=("trial", "run"), under=True)
    if view.state == "STOPPED":
        say(f"No process drives it. Next: podlift sweep resume {spec.name}")


@sweep.command(cls=VerbHelp)
def best(name: p.SweepName, root: p.Root = None, json_output: p.Json = False) -> None:
    """Print the parameters of the best trial, as arguments of the program, and its run."""
    view = Sweep(name, root=root).read()
    if view.best is None:
        raise InputError(f"The sweep {name!r} has no value yet. Next: podlift sweep status {name}")
    if json_output:
        as_json(_trial(view.best))
        return
    answer(" ".join(f"--{key} {_plain(value)}" for key, value in view.best.params.items()))
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
    view = named.read()
    if detach and not view.plan.capabilities.supervised_here:
        say(f"No process drives it: on a cloud, the client that waits does. Next: podlift sweep resume {named.name}")
    if not detach:
        shown = ""
        with relayed("sweeps"), relayed("backends"):
            for view in named.following():
                line = f"{_counts(view)}; best: {_best(view)}"
                if line != shown:
                    say(line)
                shown = line
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
    views = [named.read() for named in handle.listed(root)]
    if json_output:
        as_json([_facts(view) for view in views])
        return
    rows = [(view.record.spec.name, view.state, _counts(view), _best(view)) for view in views]
    table(("sweep", "state", "trials", "best"), rows, whole=("sweep",), under=True)
    if not views:
        say(
            "There are no sweeps. Next: podlift sweep create ENTRY --space lr=log:1e-5..1e-1 --metric val_accuracy --trials 20"
        )


def _facts(view: SweepView) -> Mapping[str, object]:
    return {
        **asdict(view.record.spec),
        "state": view.state,
        "why": view.end.why if view.end else "",
        "best": _trial(view.best) if view.best else None,
        "done": [_trial(trial) for trial in view.trials],
    }


def _trial(trial: object) -> dict[str, object]:
    shown = asdict(trial)  # type: ignore[call-overload]
    return {name: value for name, value in shown.items() if name != "notes"}


def _counts(view: SweepView) -> str:
    states = [trial.state for trial in view.trials]
    parts = [f"{states.count(state)} {state.lower()}" for state in dict.fromkeys(sorted(states))]
    return f"{len(states)} of {view.record.spec.trials}{': ' if parts else ''}{', '.join(parts)}"


def _best(view: SweepView) -> str:
    if view.best is None:
        return "none yet"
    values = ", ".join(f"{name} {_short(value)}" for name, value in view.best.params.items())
    return f"{view.record.spec.metric} {number(view.best.value)} of trial {view.best.number}: {values}"


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else _plain(value)


def _plain(value: object) -> str:
    return str(value)
